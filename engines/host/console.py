"""What every command shares: results on stdout, all else on stderr, exit codes, sizes as text."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
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
