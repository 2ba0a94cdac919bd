"""Report on this machine and installation: what works, and what is missing."""

from __future__ import annotations

import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from ...engines.errors import EnvironmentMismatchError, UsageError
from ...engines.host.gpus import survey_gpus
from ...engines.host.installation import EXTRAS, install_command, missing_modules, own_version
from ...engines.host.processor import (
    available_cores,
    processor_flags,
    processor_name,
    thread_problems,
)
from ...engines.kernels.library import find_library
from ..libskipdec.paths import native_abi_version, native_paths
from .bandwidth import measure_bandwidth

if TYPE_CHECKING:
    from ...engines.trt.library import TensorRtTarget

# Flags that select integer and half-precision kernels.
_RELEVANT_FLAGS = (
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_int8",
    "asimddp",
    "i8mm",
)
_DISTRIBUTIONS = (
    "numpy",
    "pydantic",
    "tokenizers",
    "onnxruntime",
    "onnxruntime-gpu",
    "tensorrt",
    "tensorrt_rtx_cu13",
    "cuda-bindings",
    "torch",
    "transformers",
    "safetensors",
    "onnx",
    "onnx-ir",
    "onnxscript",
    "ml_dtypes",
    "huggingface_hub",
    "matplotlib",
)
_GPU_EXTRAS = ("gpu", "tensorrt", "tensorrt-rtx")  # useless without a GPU
_TENSORRT_TARGETS: tuple[TensorRtTarget, ...] = ("tensorrt", "tensorrt-rtx")


def examine_machine(*, threads: int | None = None, bandwidth: bool = True) -> dict[str, Any]:
    """Return versions, processor, GPUs and missing parts as a JSON object.

    ``threads`` measure the bandwidth; None means all cores. That takes about a second and 1 GiB of
    memory; ``bandwidth=False`` omits it. Raises UsageError for more threads than processors.
    """
    for problem in thread_problems(threads):
        raise UsageError("threads", problem)
    flags = processor_flags()
    used = threads or available_cores()
    packages: dict[str, str | None] = {"skipdec": own_version()}
    packages |= {name: _installed_version(name) for name in _DISTRIBUTIONS}
    providers = _execution_providers()
    gpus = survey_gpus()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": packages,
        "execution_providers": providers,
        "processor": processor_name() or platform.processor(),
        "cores": available_cores(),
        "instruction_sets": [flag for flag in _RELEVANT_FLAGS if flag in flags],
        "kernels": _kernels(),
        "libskipdec": _libskipdec(),
        "gpu": asdict(gpus),
        "gpu_backends": {
            "onnxruntime-cuda": cuda_provider(providers, packages),
            **{target: _tensorrt(target) for target in _TENSORRT_TARGETS},
        },
        "bandwidth": {"threads": used, "bytes_per_second": measure_bandwidth(used)}
        if bandwidth
        else None,
        "missing": [
            {"extra": extra, "modules": modules, "install": install_command(extra)}
            for extra in EXTRAS
            if (gpus.gpus or extra not in _GPU_EXTRAS) and (modules := list(missing_modules(extra)))
        ],
    }


def _installed_version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _execution_providers() -> list[str]:
    if missing_modules("cpu"):
        return []
    from ...engines.backends.ort import execution_providers

    return execution_providers()


def _kernels() -> dict[str, str | None]:
    """Return the ``instruction_set`` of skipdec's own CPU kernels, or the ``problem``."""
    try:
        library = find_library()
        if library is not None:
            return {"instruction_set": library.instruction_set, "problem": None}
        problem = (
            "not compiled, so ONNX Runtime's slower operators run; install g++ or clang++, then "
            f"run: {install_command('cpu', '--force-reinstall', '--no-deps')}"
        )
    except EnvironmentMismatchError as error:
        problem = f"{error.subject} {'; '.join(error.problems)}"
    return {"instruction_set": None, "problem": problem}


def _libskipdec() -> dict[str, str | int | None]:
    """Return ``path`` and ``abi_version`` of the C++ runtime, or the ``problem``."""
    try:
        path, version = str(native_paths().library), native_abi_version()
    except EnvironmentMismatchError as error:
        problem = f"{error.subject} {'; '.join(error.problems)}".removeprefix("libskipdec ")
        return {"path": None, "abi_version": None, "problem": problem}
    return {"path": path, "abi_version": version, "problem": None}


def cuda_provider(providers: list[str], packages: dict[str, str | None]) -> dict[str, str | None]:
    """Return the ``version`` of ONNX Runtime with the CUDA provider, or the ``problem``."""
    cpu, gpu = packages["onnxruntime"], packages["onnxruntime-gpu"]
    remedy = f"pip uninstall -y onnxruntime onnxruntime-gpu && {install_command('gpu')}"
    if "CUDAExecutionProvider" in providers:
        return {"version": gpu or cpu, "problem": None}
    if cpu and gpu:
        problem = "onnxruntime and onnxruntime-gpu are the same module, so one hides the other"
    elif cpu:
        problem = "this onnxruntime was built for CPUs"
    else:
        problem, remedy = "onnxruntime-gpu is not installed", install_command("gpu")
    return {"version": None, "problem": f"{problem}; run: {remedy}"}


def _tensorrt(target: TensorRtTarget) -> dict[str, str | None]:
    """Return the ``version`` of the library that runs ``target``, or the ``problem``."""
    from ...engines.trt.library import load_library

    try:
        return {"version": load_library(target).version, "problem": None}
    except EnvironmentMismatchError as error:
        return {"version": None, "problem": "; ".join(error.problems)}
