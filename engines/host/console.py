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
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

from ..errors import SkipDecError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

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


def print_table(
    console: Console,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    texts: Collection[int] = (0,),
    title: str = "",
    bold: Collection[int] = (),
) -> None:
    """Print a table whose numbers are never truncated.

    ``texts``: indices of columns that wrap on a narrow console. If even the other columns don't
    fit, rows and columns are swapped. ``bold``: indices of rows.
    """
    cells = [list(row) for row in rows]
    widths = [max(map(_width, column)) for column in zip(headings, *cells, strict=True)]
    minimums = [
        min(width, _MIN_TEXT) if place in texts else width for place, width in enumerate(widths)
    ]
    if sum(minimums) + _GAP * (len(minimums) - 1) > console.width:
        _print_sideways(console, headings, cells, texts=texts, title=title, bold=bold)
        return
    table = _plain_table(title=title)
    for place, (heading, width) in enumerate(zip(headings, minimums, strict=True)):
        if place in texts:
            table.add_column(heading, overflow="fold", min_width=width)
        else:
            table.add_column(heading, justify="right", no_wrap=True, min_width=width)
    for place, row in enumerate(cells):
        table.add_row(*row, style="bold" if place in bold else "")
    console.print(table)


def print_facts(console: Console, facts: Sequence[tuple[str, str, str]]) -> None:
    """Print (name, text, style) rows; texts wrap on a terminal, but not in a pipe."""
    if console.width >= _PIPE_WIDTH:
        longest = max(len(name) for name, _, _ in facts)
        for name, text, _ in facts:
            lines = text.replace("\n", "\n" + " " * (longest + 2))
            console.print(f"{name:<{longest}}  {lines}")
        return
    table = _plain_table(show_header=False)
    table.add_column(overflow="fold", min_width=_MIN_TEXT)
    table.add_column(overflow="fold")
    for name, text, style in facts:
        table.add_row(name, text, style=style)
    console.print(table)


def _plain_table(*, title: str = "", show_header: bool = True) -> Table:
    from rich.table import Table

    return Table(
        title=title,
        title_justify="left",
        show_header=show_header,
        box=None,
        padding=(0, 1),
        pad_edge=False,
    )


def _print_sideways(
    console: Console,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    texts: Collection[int],
    title: str,
    bold: Collection[int],
) -> None:
    """Print one line per heading and one column per row, in blocks that fit the console."""
    names = [" ".join(heading.replace("-\n", "").split()) for heading in headings]
    widths = [_min_width(row, texts) for row in rows]
    name_width = max(map(_width, names))
    for place, shown in enumerate(_fitting(widths, console.width - name_width)):
        table = _plain_table(title="" if place else title, show_header=False)
        table.add_column(overflow="fold")
        for row in shown:
            style = "bold" if row in bold else ""
            table.add_column(justify="right", overflow="fold", min_width=widths[row], style=style)
        for line, name in enumerate(names):
            cells = [rows[row][line] for row in shown]
            if any(cells):
                table.add_row(name, *cells)
        table.add_row()
        console.print(table)


def _fitting(widths: Sequence[int], width: int) -> Iterator[list[int]]:
    """Group the indices of columns so that each group fits ``width`` or has one column."""
    group: list[int] = []
    for place, minimum in enumerate(widths):
        if group and sum(widths[other] + _GAP for other in group) + minimum + _GAP > width:
            yield group
            group = []
        group.append(place)
    if group:
        yield group


def _min_width(cells: Sequence[str], texts: Collection[int]) -> int:
    """Return the minimum width of a column with ``cells``."""
    return max(
        min(_width(cell), _MIN_TEXT) if place in texts else _width(cell)
        for place, cell in enumerate(cells)
    )


def _width(cell: str) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, cell.split("\n")))


def print_json(document: Any) -> None:  # noqa: ANN401  (any JSON value)
    """Print one JSON value, indented, on stdout."""
    is_ascii = "utf" not in (sys.stdout.encoding or "utf-8").lower()
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=is_ascii) + "\n")


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


def print_markdown(console: Console, text: str) -> None:
    """Print `markdown_table` output: unchanged in a pipe, as fitted tables on a terminal."""
    if not console.is_terminal:
        sys.stdout.write(text)
        return
    for block in text.rstrip("\n").split("\n\n"):
        if not block.startswith("| "):
            console.print(f"{block}\n", soft_wrap=False)
            continue
        headings, _, *rows = map(_cells, block.splitlines())
        texts = [
            place
            for place, column in enumerate(zip(*rows, strict=True))
            if not all(_NUMBER.match(cell) for cell in column)
        ]
        print_table(console, headings, rows, texts=texts)
        console.print()


def _cells(line: str) -> list[str]:
    cells = re.split(r"(?<!\\)\|", line)[1:-1]
    return [html.unescape(cell.strip().replace("\\|", "|")) for cell in cells]


def escaped(text: str) -> str:
    """Return ``text`` as one Markdown line that renders literally: ``<sep>``, | and all."""
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|")


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
    """Make the standard streams safe to use: once, at the start of a command.

    /dev/null takes the number of a closed one, as the next file that is opened would get it and
    receive results. Reading stdin and writing to stdout stay errors, texts to stderr are lost.
    Characters that a terminal's encoding lacks are written as ``\\x..``.
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
    """Print a report of what is ``done``: a stdout that can't take it is no failure any more.

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
    """Give up what stdout could not take, so that the end of the process doesn't try again."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, sys.stdout.fileno())
    os.close(descriptor)
