"""Open bundles on a device of host memory, and on CUDA if the machine has a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skipdec import Generator
from skipdec.engines.errors import EnvironmentMismatchError
from skipdec.engines.host.gpus import survey_gpus

DEVICES = pytest.mark.parametrize(
    "device", ["rehearsal", pytest.param("cuda", marks=pytest.mark.gpu)]
)
# Largest difference between values of one log-probability that rounding explains: on a CPU,
# float16 bundles of the tiny models differ from float32 ones by up to 0.0055.
TOLERANCES = {"float32": 1e-3, "float16": 2e-2}


def require_device(device: str) -> None:
    """Skip a test that needs CUDA on a machine without a GPU."""
    if device == "cuda" and not survey_gpus().gpus:
        pytest.skip(f"this machine has no GPU ({survey_gpus().note})")


def open_on(bundle: Path, device: str, **options: Any) -> Generator:  # noqa: ANN401
    """Open ``bundle`` on ``device``, or skip the test without a GPU.

    ONNX Runtime's CUDA provider has no float32 attention; its refusal also skips the test.
    """
    require_device(device)
    try:
        return Generator.open(bundle, device=device, **options)
    except EnvironmentMismatchError as error:
        if device == "cuda" and "attention on CUDA needs float16" in str(error):
            pytest.skip(str(error))
        raise
