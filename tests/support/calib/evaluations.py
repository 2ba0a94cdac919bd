"""Provide a schedule and data for tests of evaluations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from skipdec.calib.evaluation.metrics import Outcome

SKIPPING = "linear:max=4,min=2,warmup=1,horizon=4"

ROWS = (
    ("ab", "some text"),
    ("cd", "other"),
    ("ab", "a second reference"),
    ("efg", "a | third"),
)


def outcome(text: str = "a", **fields: Any) -> Outcome:  # noqa: ANN401
    """Return the outcome of a prompt, by default a text of one token equal to its reference."""
    defaults: dict[str, Any] = {
        "token_ids": (5,),
        "is_cut": False,
        "layers_per_token": (6, 4),
        "references": ("a",),
        "reference_tokens": 1.0,
        "logprobs": (-1.0,),
    }
    return Outcome(text=text, **(defaults | fields))


def write_rows(path: Path) -> Path:
    """Write the prompts and completions of ROWS as JSON lines."""
    rows = [{"prompt": prompt, "completion": text} for prompt, text in ROWS]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path
