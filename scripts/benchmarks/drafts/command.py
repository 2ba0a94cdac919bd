"""Drafts over texts that are not E2E's, and beside other engines' drafts.

    python scripts/bench.py drafts texts /tmp/drafts       # texts from this repository's pages

Each part has a help text of its own: ``bench.py drafts PART --help``.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from types import ModuleType

PARTS = {
    "texts": "making",
    "replay": "replay",
    "peers": "peers",
}


def main() -> None:
    """Run the part that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    for name, module in PARTS.items():
        found = _module(module)
        text = found.__doc__ or ""
        part = parts.add_parser(
            name,
            help=text.split("\n")[0],
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        found.add_options(part)
        part.set_defaults(run=found.run)
    arguments = parser.parse_args()
    arguments.run(arguments)


def _module(name: str) -> ModuleType:
    return import_module(f"benchmarks.drafts.{name}")
