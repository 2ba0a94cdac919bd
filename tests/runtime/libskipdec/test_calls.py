"""NativeCalls: what the program answers, and what happens if it ends."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from skipdec.engines.errors import EnvironmentMismatchError
from skipdec.runtime.libskipdec import calls
from skipdec.runtime.libskipdec.calls import NativeCalls
from skipdec.runtime.libskipdec.paths import ONNXRUNTIME_VARIABLE
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.tokens.sampling import SamplingParams

HELLO = 'echo \'{"description": "x"}\''
GREEDY = SamplingParams.fixed(temperature=0, max_tokens=2)


def stand_in(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Let ``script`` of the shell take the place of the program."""
    program = folder / "skipdec-calls"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    paths = SimpleNamespace(executable=folder / "skipdec-run")
    monkeypatch.setattr(calls, "native_paths", lambda: paths)


@pytest.mark.parametrize(
    "script", [f"exec <&-; {HELLO}", f"{HELLO}; read call", f"{HELLO}; read call; printf '{{'"]
)
def test_a_program_that_ends_is_an_error_of_ours(
    script: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in(monkeypatch, tmp_path, script)
    with (
        NativeCalls.open(tmp_path, threads=1, max_batch_size=1) as native,
        pytest.raises(EnvironmentMismatchError, match="has ended"),
    ):
        native.run([[5]], GREEDY, schedule=ExitSchedule.full(2))


def test_the_onnxruntime_that_a_user_names_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in(monkeypatch, tmp_path, f'echo "{{\\"description\\": \\"${ONNXRUNTIME_VARIABLE}\\"}}"')
    monkeypatch.setenv(ONNXRUNTIME_VARIABLE, "/my/libonnxruntime.so")
    with NativeCalls.open(tmp_path, threads=1, max_batch_size=1) as native:
        assert native.description == "/my/libonnxruntime.so"
