"""Generate docs/benchmarks/drafts.md from all processors' figures, docs/benchmarks/drafts/*.json.

PYTHONPATH=scripts python -m pages.drafts
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import ROOT, records

from skipdec.engines.host.console import markdown_table

FIGURES = ROOT / "docs" / "benchmarks" / "drafts"
PAGE = FIGURES.with_suffix(".md")
_INTRODUCTION = """# Drafts on other texts

"""


def main() -> None:
    """Draw the page."""
    draw(FIGURES, PAGE)


def draw(figures: Path, page: Path) -> None:
    """Write ``page`` from the files of ``figures``."""
    page.write_text(drafts_page(list(records(figures))), encoding="utf-8")


def drafts_page(machines: Sequence[Mapping[str, Any]]) -> str:
    """Return the whole page; ``machines`` are the documents of `records`."""
    return _INTRODUCTION


def replay_table(part: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table with a line per file and draft text."""
    yield markdown_table(
        ("texts", "draft", "tokens per pass", "last half", "guessed per pass", "held", "gain"),
        [
            (
                f"{name} ({file['texts']}; {file['tokens']:,} tokens)",
                f"`{draft}`",
                f"{figures['tokens_per_pass']:.2f}",
                f"{figures['last_half']:.2f}",
                f"{figures['drafted_per_pass']:.2f}",
                f"{figures['acceptance']:.0%}",
                f"{figures['gain']:.2f}×",
            )
            for name, file in part["files"].items()
            for draft, figures in file["drafts"].items()
        ],
    )


if __name__ == "__main__":
    main()
