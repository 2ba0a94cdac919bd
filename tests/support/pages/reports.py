"""Show a report as a command does, as JSON or as text on a console."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from typing import Any

from rich.console import Console

from skipdec.engines.host.console import Part, json_text


def as_json(document: object) -> Any:  # noqa: ANN401  (any JSON value)
    """Return a report after a round trip through strict JSON."""
    text = json_text(document)
    assert json.dumps(json.loads(text), allow_nan=False)
    return json.loads(text)


def shown(parts: Iterable[Part], width: int = 200) -> str:
    """Return the parts of a report as a console of ``width`` characters shows them."""
    file = io.StringIO()
    console = Console(width=width, file=file, highlight=False, markup=False, soft_wrap=True)
    for part in parts:
        if isinstance(part, str):
            console.print(part, soft_wrap=True)
        else:
            part.print(console)
    return file.getvalue()
