"""Test how a command's process ends after signals and without a stdout."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import SKIPDEC

from skipdec import cli
from skipdec.engines.errors import VerificationError
from skipdec.engines.host.console import reports_errors
from skipdec.engines.host.signals import SIGNALS

SHOW = ["schedule", "show", "2x", "--layers", "8"]


@pytest.fixture
def ended_by(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Return ``ended_by(work)``, which returns the exit code of a command that does ``work``."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # may be ignored in the background
    monkeypatch.setattr(cli, "prepare_streams", lambda: None)  # pytest's handlers stay

    def run(work: Callable[[], None]) -> Any:  # noqa: ANN401
        monkeypatch.setattr(cli, "build_app", lambda: lambda *_, **__: reports_errors(work)())
        with pytest.raises(SystemExit) as end:
            cli._run(["tune"])
        return end.value.code

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


def interrupted(number: int, error: type[Exception] | None = None) -> Callable[[], None]:
    """Return work that gets a signal, which a library turns into ``error``."""

    def work() -> None:
        try:
            os.kill(os.getpid(), number)
        except KeyboardInterrupt:
            if error is None:
                raise
            raise error("fx", "graph") from None

    return work


@pytest.mark.parametrize("error", [None, RuntimeError, VerificationError])
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_every_command_the_same_way(
    ended_by: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
    error: type[Exception] | None,
) -> None:
    assert ended_by(interrupted(number, error)) == 128 + number
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted"


def test_work_finished_despite_a_signal_succeeds(ended_by: Callable[..., Any]) -> None:
    def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            return

    assert not ended_by(work)


def show(stdout: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run ``schedule show`` in a shell with redirected stdout."""
    command = [*SKIPDEC, *SHOW]
    return subprocess.run(
        ["sh", "-c", f'"$@" {stdout}', "sh", *command],
        capture_output=True,
        env=os.environ | environment,
    )


@pytest.mark.parametrize("stdout", [">/dev/full", ">&-"])
def test_an_unwritable_stdout_is_a_one_line_error(stdout: str) -> None:
    done = show(stdout)
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: ")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_the_bare_command_prints_no_traceback_on_a_full_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    monkeypatch.setattr(cli, "prepare_streams", lambda: None)
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as end:
            cli._run([option])
    assert end.value.code == 1
    assert "error: input or output | no space left on device" in capsys.readouterr().err


def test_a_terminal_without_unicode_gets_every_line() -> None:
    done = show("", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert b"\\xd7 fewer" in done.stdout
