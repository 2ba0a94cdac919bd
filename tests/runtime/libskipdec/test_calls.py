"""NativeCalls reports a program that exits, and passes it an ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from skipdec.engines.errors import EnvironmentMismatchError, UsageError
from skipdec.runtime.libskipdec import calls
from skipdec.runtime.libskipdec.calls import NativeCalls
from skipdec.runtime.libskipdec.paths import ONNXRUNTIME_VARIABLE
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.tokens.sampling import SamplingParams

HELLO = 'echo \'{"description": "x"}\''
PARAMS = SamplingParams.fixed(temperature=0, seed=0, max_tokens=2)


def replace_program(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Replace the program by a shell script."""
    program = folder / "skipdec-calls"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    paths = SimpleNamespace(executable=folder / "skipdec-run")
    monkeypatch.setattr(calls, "native_paths", lambda: paths)


@pytest.mark.parametrize(
    "script", [f"exec <&-; {HELLO}", f"{HELLO}; read call", f"{HELLO}; read call; printf '{{'"]
)
def test_a_program_that_exits_raises_an_error(
    script: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    replace_program(monkeypatch, tmp_path, script)
    with (
        NativeCalls.open(tmp_path, threads=1, max_batch_size=1) as native,
        pytest.raises(EnvironmentMismatchError, match="has ended"),
    ):
        native.run([[5]], PARAMS, schedule=ExitSchedule.full(2))


def test_the_program_uses_the_onnxruntime_that_the_user_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    replace_program(
        monkeypatch, tmp_path, f'echo "{{\\"description\\": \\"${ONNXRUNTIME_VARIABLE}\\"}}"'
    )
    monkeypatch.setenv(ONNXRUNTIME_VARIABLE, "/my/libonnxruntime.so")
    with NativeCalls.open(tmp_path, threads=1, max_batch_size=1) as native:
        assert native.description == "/my/libonnxruntime.so"


@pytest.mark.parametrize("change", [{"top_p": 0.5}, {"seed": None}, {"max_tokens": None}], ids=str)
def test_parameters_that_are_not_passed_on_are_refused(
    change: dict[str, object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    replace_program(monkeypatch, tmp_path, HELLO)
    params = PARAMS.updated(**change)
    with (
        NativeCalls.open(tmp_path, threads=1, max_batch_size=1) as native,
        pytest.raises(UsageError, match="must be given: temperature, seed, max_tokens"),
    ):
        native.run([[5]], params, schedule=ExitSchedule.full(2))
