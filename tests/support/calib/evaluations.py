"""A schedule and data for tests of evaluations."""

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
