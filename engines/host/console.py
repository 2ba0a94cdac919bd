"""What every command shares: results on stdout, all else on stderr, exit codes, tables as text."""

from __future__ import annotations

import html
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

from ..errors import SkipDecError

if TYPE_CHECKING:
    from rich.console import Console

P = ParamSpec("P")


def stderr_console() -> Console:
    """A rich console on stderr: progress, tables, warnings. Never results."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def result_console() -> Console:
    """A rich console on stdout for tables; as wide in a pipe as they need, so nothing is cut."""
    from rich.console import Console

    plain = not sys.stdout.isatty()
    return Console(highlight=False, markup=False, soft_wrap=True, width=140 if plain else None)


def print_json(document: Any) -> None:  # noqa: ANN401  (any JSON value)
    """Print one JSON value, indented, on stdout."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def reports_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Turn a command's SkipDecError into ``error: …`` on stderr and its exit code.

    0 ok, 1 failed (parity too), 2 usage, 3 environment mismatch; 130 after Ctrl-C.
    """

    @wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except SkipDecError as error:
            sys.stderr.write(f"error: {error}\n")
            raise SystemExit(error.exit_code) from None
        except KeyboardInterrupt:
            sys.stderr.write("interrupted\n")
            raise SystemExit(130) from None

    return wrapper


def markdown_table(headings: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown; cells are Markdown already."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def escaped(text: str) -> str:
    """One line that Markdown shows as it is: a ``<sep>`` stays visible, a | ends no cell."""
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|")


def number(value: float, digits: int, *, signed: bool = False) -> str:
    """``value`` rounded, never to −0; a dash where it is not finite."""
    if not math.isfinite(value):
        return "–"
    return f"{value:{'+' if signed else ''}z.{digits}f}"


def interval(value: float, low: float, high: float, digits: int, *, signed: bool = False) -> str:
    """``69.1 [66.8, 71.2]``."""
    bounds = ", ".join(number(bound, digits, signed=signed) for bound in (low, high))
    return f"{number(value, digits, signed=signed)} [{bounds}]"
