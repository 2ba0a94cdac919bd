"""The three standard streams of a command, whatever they are: closed, full, without Unicode."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def prepare_streams() -> None:
    """Make the standard streams safe to use: once, at the start of a command.

    Where one is closed, /dev/null takes its number: the next file that is opened would get it, and
    results would go there. Reading stdin and writing to stdout stay errors, stderr loses its texts.
    Characters that the encoding of a terminal does not have are written as ``\\x..``.
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
