"""Find GPUs through the CUDA runtime; finding none is not an error."""

from __future__ import annotations

from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest

from skipdec.engines.host import gpus

runtime = pytest.importorskip("cuda.bindings.runtime", reason="cuda-bindings is not installed")


class Status(IntEnum):
    cudaSuccess = 0  # noqa: N815  (CUDA's names)
    cudaErrorInsufficientDriver = 35  # noqa: N815
    cudaErrorNoDevice = 100  # noqa: N815
    cudaErrorSystemNotReady = 802  # noqa: N815


def answer(monkeypatch: pytest.MonkeyPatch, status: Status, driver: int) -> None:
    """Make the CUDA runtime report two H200 with this driver, or fail with ``status``."""
    properties = SimpleNamespace(name=b"NVIDIA H200\0\0", major=9, minor=0, totalGlobalMem=2**37)
    answers: dict[str, Any] = {
        "cudaDriverGetVersion": lambda: (Status.cudaSuccess, driver),
        "cudaGetDeviceCount": lambda: (status, 2),
        "cudaGetDeviceProperties": lambda index: (Status.cudaSuccess, properties),
        "cudaGetErrorString": lambda error: (Status.cudaSuccess, b"not ready"),
    }
    for name, function in answers.items():
        monkeypatch.setattr(runtime, name, function)


def test_gpus_match_the_runtimes_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, Status.cudaSuccess, 13000)
    assert gpus.survey_gpus() == gpus.GpuSurvey(
        gpus=tuple(gpus.Gpu(index, "NVIDIA H200", "9.0", 2**37) for index in range(2)), cuda="13.0"
    )


@pytest.mark.parametrize(
    ("status", "driver", "note"),
    [
        (Status.cudaErrorInsufficientDriver, 0, "none that the NVIDIA driver knows"),
        (Status.cudaErrorNoDevice, 13000, "none that the NVIDIA driver knows"),
        (Status.cudaErrorInsufficientDriver, 12040, "cudaErrorInsufficientDriver: not ready"),
        (Status.cudaErrorSystemNotReady, 13000, "cudaErrorSystemNotReady: not ready"),
    ],
)
def test_missing_gpus_have_a_reason(
    monkeypatch: pytest.MonkeyPatch, status: Status, driver: int, note: str
) -> None:
    answer(monkeypatch, status, driver)
    survey = gpus.survey_gpus()
    assert survey.gpus == ()
    assert note in str(survey.note)


def test_missing_cuda_bindings_are_reported_with_the_pip_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpus, "missing_modules", lambda extra: ("cuda.bindings",))
    monkeypatch.setattr(gpus, "_has_no_driver", lambda: False)
    found = gpus.survey_gpus()
    assert ("pip install cuda-bindings" in str(found.note), found.is_known) == (True, False)
    monkeypatch.setattr(gpus, "_has_no_driver", lambda: True)
    assert gpus.survey_gpus() == gpus.GpuSurvey(note="none: no NVIDIA driver is loaded")
