"""System errors print one line; finished work is kept even if stdout can't be written."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from skipdec.engines.host.console import TRACEBACKS, print_json, reporting, reports_errors


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ENOENT, "no such file or directory; check the path"),
        (errno.EACCES, "permission denied; check who may read and write there"),
        (errno.ENOSPC, "no space left on device; free some space, then run the command again"),
        (errno.EROFS, "read-only file system; choose a place that can be written"),
        (errno.ENAMETOOLONG, "file name too long; choose a shorter name"),
        (errno.EIO, "input/output error; SKIPDEC_TRACEBACKS=1 shows where this happened"),
    ],
)
@pytest.mark.parametrize("name", ["out.jsonl", None])
def test_system_errors_print_one_line(
    capsys: pytest.CaptureFixture[str], number: int, text: str, name: str | None
) -> None:
    @reports_errors
    def command() -> None:
        raise OSError(number, os.strerror(number), name)

    with pytest.raises(SystemExit) as end:
        command()
    assert end.value.code == 1
    assert capsys.readouterr().err == f"error: {name or 'input or output'} | {text}\n"


@pytest.mark.parametrize("error", [OSError("a library's own"), BrokenPipeError(errno.EPIPE, "")])
def test_errors_without_a_number_and_closed_pipes_propagate(error: OSError) -> None:
    @reports_errors
    def command() -> None:
        raise error

    with pytest.raises(OSError) as caught:  # noqa: PT011
        command()
    assert caught.value is error


def test_an_environment_variable_shows_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRACEBACKS, "1")
    with pytest.raises(FileNotFoundError):
        reports_errors(lambda: os.stat("nowhere"))()  # noqa: PTH116


def test_a_report_that_stdout_rejects_is_a_warning(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with reporting("the bundle is published"):
            print_json({"size": 1})
        monkeypatch.undo()
    assert capfd.readouterr().err == (
        "warning: the bundle is published; its report can't be printed on stdout "
        "(No space left on device)\n"
    )
