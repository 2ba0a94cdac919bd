"""A survey of this machine's NVIDIA GPUs by the CUDA runtime; works without any."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .installation import missing_modules

# Errors that mean that there is nothing to find, rather than that something is broken.
_NO_DRIVER, _NO_DEVICE = "cudaErrorInsufficientDriver", "cudaErrorNoDevice"


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU."""

    index: int
    name: str  # as the driver calls it, e.g. NVIDIA H200
    compute_capability: str  # e.g. 9.0
    memory: int  # total bytes


@dataclass(frozen=True)
class GpuSurvey:
    """All GPUs of this machine; ``note`` says why there are none.

    ``is_known``: False if there may be GPUs that can't be detected without cuda-bindings.
    """

    gpus: tuple[Gpu, ...] = ()
    cuda: str | None = None  # newest CUDA that the driver supports, e.g. 13.0
    note: str | None = None
    is_known: bool = True


def survey_gpus() -> GpuSurvey:
    """Ask the CUDA runtime for GPUs; none are found without a driver or cuda-bindings.

    >>> survey_gpus()
    GpuSurvey(gpus=(Gpu(index=0, name='NVIDIA H200', compute_capability='9.0', ...),), cuda='13.0')
    """
    if "cuda.bindings" in missing_modules("gpu"):
        if _has_no_driver():
            return GpuSurvey(note="none: no NVIDIA driver is loaded")
        return GpuSurvey(note="not looked for: needs pip install cuda-bindings", is_known=False)
    from cuda.bindings import runtime

    status, version = runtime.cudaDriverGetVersion()
    cuda = f"{version // 1000}.{version % 1000 // 10}" if not status and version else None
    status, count = runtime.cudaGetDeviceCount()
    if status:
        return GpuSurvey(cuda=cuda, note=_note(runtime, status, cuda))
    return GpuSurvey(tuple(_gpu(runtime, index) for index in range(count)), cuda)


def _has_no_driver() -> bool:
    """Return True if no device file of a driver exists (Linux, including WSL)."""
    files = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
    return sys.platform == "linux" and not any(file.exists() for file in files)


def _note(runtime: Any, status: Any, cuda: str | None) -> str:  # noqa: ANN401  (untyped bindings)
    if status.name == _NO_DEVICE or (status.name == _NO_DRIVER and cuda is None):
        return "none that the NVIDIA driver knows"
    _, text = runtime.cudaGetErrorString(status)
    return f"the CUDA runtime answers {status.name}: {text.decode()}"


def _gpu(runtime: Any, index: int) -> Gpu:  # noqa: ANN401
    status, found = runtime.cudaGetDeviceProperties(index)
    if status:
        return Gpu(index, f"unknown ({status.name})", "unknown", 0)
    return Gpu(
        index=index,
        name=found.name.rstrip(b"\0").decode(),
        compute_capability=f"{found.major}.{found.minor}",
        memory=found.totalGlobalMem,
    )
