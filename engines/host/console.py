"""Console conventions of all commands: results on stdout, messages on stderr, exit codes."""

from __future__ import annotations

import errno
import html
import io
import json
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

from ..errors import SkipDecError

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod

P = ParamSpec("P")

TRACEBACKS = "SKIPDEC_TRACEBACKS"  # environment variable: system errors keep their traceback

_ADVICE = {
    errno.EBADF: "stdin or stdout may be closed: open it",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path",
    errno.EACCES: "check who may read and write there",
    errno.EPERM: "check who may read and write there",
    errno.EROFS: "choose a place that can be written",
    errno.ENOSPC: "free some space, then run the command again",
    errno.EDQUOT: "free some space, then run the command again",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}

_PIPE_WIDTH = 10_000
_NUMBER = re.compile(r"[-+–\d]")  # start of a numeric cell
_MARKUP = re.compile(r"[\\`*_~|]|\](?=[(\[])")  # what Markdown may take for its own
_GAP = 2  # columns of the console between those of a table
_MIN_TEXT = 12  # minimum width of a text column


def stderr_console() -> Console:
    """Return a rich console on stderr for progress, tables and warnings, never results."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def result_console() -> Console:
    """Return a rich console on stdout for results; in a pipe, lines are never wrapped."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(highlight=False, markup=False, soft_wrap=True, width=width)


@dataclass(frozen=True)
class Table:
    """A table of a report; columns of numbers are aligned on the right, texts wrap.

    ``bold``: indices of rows. Without ``headings`` the rows are facts: a name and its text.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    bold: Collection[int] = ()

    def markdown(self) -> str:
        """Return the table as Markdown that renders its cells literally."""
        return markdown_table(self.headings, (map(escaped, row) for row in self.rows))

    def print(self, console: Console) -> None:
        """Print the table; numbers are never cut, so a narrow terminal may wrap its lines."""
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(
            title=self.title,
            title_justify="left",
            show_header=bool(self.headings),
            box=None,
            padding=(0, 1),
            pad_edge=False,
        )
        needed = 0
        headings = self.headings or [""] * len(self.rows[0])
        for heading, *cells in zip(headings, *self.rows, strict=True):
            width = max(map(_width, (heading, *cells)))
            is_text = not all(_NUMBER.match(cell) for cell in cells if cell)
            least = min(width, _MIN_TEXT) if is_text else width
            justify: JustifyMethod = "left" if is_text else "right"
            table.add_column(heading, justify=justify, overflow="fold", min_width=least)
            needed += least + _GAP
        for index, row in enumerate(self.rows):
            table.add_row(*map(Text, row), style="bold" if index in self.bold else "")
        if needed - _GAP > console.width:
            table.width = needed - _GAP
        if console.is_terminal:
            console.print(table, crop=False)
            return
        with console.capture() as made:
            console.print(table, crop=False)
        for line in made.get().splitlines():  # without the padding of the last column
            console.print(line.rstrip(), soft_wrap=True)


Part = str | Table
"""A part of a report: lines of text, or a table."""


def facts(pairs: Iterable[tuple[str, str]]) -> Table:
    """Return (name, text) pairs as a table without headings; pairs without text are left out."""
    return Table((), [pair for pair in pairs if pair[1]])


def print_report(document: Any, parts: Iterable[Part], *, as_json: bool) -> None:  # noqa: ANN401
    """Print a report on stdout: ``document`` as JSON, or else its ``parts`` for people."""
    if as_json:
        print_json(document)
        return
    console = result_console()
    for part in parts:
        if isinstance(part, str):
            console.print(part, soft_wrap=True)
        else:
            part.print(console)


def markdown_report(parts: Iterable[Part]) -> str:
    """Return the parts of a report as Markdown, an empty line between them."""
    texts = (
        html.escape(part, quote=False) if isinstance(part, str) else part.markdown()
        for part in parts
    )
    return "\n\n".join(texts) + "\n"


def _width(cell: str) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, cell.split("\n")))


def json_text(document: Any) -> str:  # noqa: ANN401  (any JSON value)
    """Return JSON of nested values, dataclasses and models; NaN and infinities become null."""
    from pydantic_core import to_jsonable_python

    value = to_jsonable_python(document, inf_nan_mode="null")
    is_ascii = "utf" not in (sys.stdout.encoding or "utf-8").lower()
    return json.dumps(value, indent=2, ensure_ascii=is_ascii) + "\n"


def print_json(document: Any) -> None:  # noqa: ANN401  (any JSON value)
    """Print one JSON value, indented, on stdout; see `json_text`."""
    sys.stdout.write(json_text(document))


def reports_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Turn a command's SkipDecError or OSError into ``error: …`` on stderr and its exit code.

    Codes: 0 ok, 1 failure (including parity and system errors), 2 usage, 3 environment mismatch,
    128 + signal number after a signal: 130 after Ctrl-C, 143 after SIGTERM. Other exceptions
    propagate, as does an OSError without a number or from a closed pipe.
    """

    @wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except SkipDecError as error:
            sys.stderr.write(f"error: {error}\n")
            raise SystemExit(error.exit_code) from None
        except OSError as error:
            if error.errno in (None, errno.EPIPE) or TRACEBACKS in os.environ:
                raise
            sys.stderr.write(f"error: {describe_os_error(error)}\n")
            raise SystemExit(1) from None
        except KeyboardInterrupt as interruption:
            number = getattr(interruption, "number", signal.SIGINT)
            raise SystemExit(128 + number) from None

    return wrapper


def describe_os_error(error: OSError) -> str:
    """Return the file, the system's message, and what to do."""
    text = (error.strerror or str(error)).lower()
    advice = _ADVICE.get(error.errno or 0, f"{TRACEBACKS}=1 shows where this happened")
    return f"{error.filename or 'input or output'} | {text}; {advice}"


def markdown_table(headings: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table of ``headings`` and ``rows``; the cells are Markdown already."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def escaped(text: str) -> str:
    """Return ``text`` as one Markdown line that renders literally, even ``<sep>`` and |."""
    line = html.escape(" ".join(text.split()), quote=False)
    return _MARKUP.sub(r"\\\g<0>", line)


def number(value: float, digits: int, *, signed: bool = False) -> str:
    """Return ``value`` rounded, without a negative zero; a dash if it is not finite."""
    if not math.isfinite(value):
        return "–"
    return f"{value:{'+' if signed else ''}z.{digits}f}"


def interval(value: float, low: float, high: float, digits: int, *, signed: bool = False) -> str:
    """Return ``value`` with its bounds, e.g. ``69.1 [66.8, 71.2]``."""
    bounds = ", ".join(number(bound, digits, signed=signed) for bound in (low, high))
    return f"{number(value, digits, signed=signed)} [{bounds}]"


def prepare_streams() -> None:
    """Make the standard streams safe to use; call it once, at the start of a command.

    /dev/null takes the descriptor of a closed stream, because the next file to be opened would get
    it and receive results. Reading stdin and writing to stdout remain errors; texts to stderr are
    lost. Characters that a terminal's encoding lacks are written as ``\\x..``.
    """
    streams = (
        ("stdin", "r", os.O_WRONLY),
        ("stdout", "w", os.O_RDONLY),
        ("stderr", "w", os.O_RDWR),
    )
    for descriptor, (name, mode, access) in enumerate(streams):
        if getattr(sys, name) is None:
            os.open(os.devnull, access)  # takes the lowest free number
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def reporting(done: str) -> Iterator[None]:
    """Print a report of what is ``done``; if stdout can't take it, only warn.

    >>> with reporting("the bundle is at opt.skipdec"): ...
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        discard_stdout()
        reason = error.strerror or error
        sys.stderr.write(f"warning: {done}; its report can't be printed on stdout ({reason})\n")


def discard_stdout() -> None:
    """Discard what stdout could not take, so that the process doesn't write it again at its end."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, sys.stdout.fileno())
    os.close(descriptor)
