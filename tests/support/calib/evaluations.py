"""What tests of evaluations share: a schedule, data, and progress that counts."""

from __future__ import annotations

import json
from pathlib import Path

SKIPPING = "linear:max=4,min=2,warmup=1,horizon=4"

ROWS = (
    ("ab", "some text"),
    ("cd", "other"),
    ("ab", "a second reference"),
    ("efg", "a | third"),
)


def write_rows(path: Path) -> Path:
    """Write ROWS, prompts and completions, as JSON lines."""
    rows = [{"prompt": prompt, "completion": text} for prompt, text in ROWS]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


class Silent:
    """Progress of an evaluation that only counts."""

    def __init__(self) -> None:
        self.total = 0
        self.done: list[str] = []

    def begin(self, total: int) -> None:
        self.total = total

    def advance(self, done: str) -> None:
        self.done.append(done)
