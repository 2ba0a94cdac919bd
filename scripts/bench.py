"""Run one of the benchmarks: ``python scripts/bench.py cpu --work /tmp/bench``."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

BENCHMARKS = {
    "cpu": "the CPU figures of README.md and docs/benchmarks.md",
    "peers": "CTranslate2, OpenVINO and llama.cpp on the same models",
    "load": "what clients of a server, Triton or an engine see",
    "gpu": "a GPU beside a compiled model; scripts/gpu_check.sh runs it",
}


def main() -> int:
    """Run the benchmark that the first argument names, with the others; return its exit code."""
    parser = argparse.ArgumentParser(
        description="\n".join(f"{name:8} {measures}" for name, measures in BENCHMARKS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("benchmark", choices=BENCHMARKS)
    parser.add_argument(
        "options", nargs=argparse.REMAINDER, help="of the benchmark; its --help lists them"
    )
    given = parser.parse_args()
    sys.argv = [f"{sys.argv[0]} {given.benchmark}", *given.options]  # for its own argparse
    return import_module(f"benchmarks.{given.benchmark}.command").main() or 0


if __name__ == "__main__":
    sys.exit(main())
