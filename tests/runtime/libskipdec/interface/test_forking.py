"""Children forked while an engine is open get a clear error and never hang."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import built_program
from runtimes import LIBRARY


@pytest.fixture(scope="module")
def lines(exported: Callable[..., Path]) -> list[str]:
    """Return forking.cpp's report of its children."""
    if (os.cpu_count() or 1) < 2:
        pytest.skip("a pool of two threads needs two processors")
    done = subprocess.run(
        [built_program("forking"), exported("pre_norm", kernels="auto", quantize="int8")],
        env=os.environ | {"SKIPDEC_ONNXRUNTIME": str(LIBRARY)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("child", ["first", "again", "release"])
def test_allowed_calls_in_a_child_succeed(lines: list[str], child: str) -> None:
    assert f"{child} exits with 4" in lines


def test_exit_in_a_child_runs_its_own_handlers_and_returns_its_code(lines: list[str]) -> None:
    assert lines[lines.index("exit: its own handler") + 1] == "exit exits with 3"


@pytest.mark.parametrize("child", ["open", "submit", "wait", "poll", "close", "read"])
def test_forbidden_calls_in_a_child_are_refused(lines: list[str], child: str) -> None:
    assert f"{child} exits with 101" in lines
    (words,) = [line for line in lines if line.startswith(f"{child}: ")]
    assert "fork" in words
