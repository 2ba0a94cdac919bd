"""Write the directory ``examples`` of README.md and docs/ with fewer held-out prompts."""

from __future__ import annotations

from pathlib import Path

EXAMPLES = Path(__file__).parents[3] / "examples"


def write_examples(directory: Path) -> None:
    """Write all training rows and 16 of the 64 held-out prompts to ``directory / "examples"``."""
    directory = directory / "examples"
    directory.mkdir()
    for name in ("restaurants", "train.jsonl"):
        (directory / name).symlink_to(EXAMPLES / name)
    rows = (EXAMPLES / "dev.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (directory / "dev.jsonl").write_text("".join(rows[: 16 * 3]), encoding="utf-8")
