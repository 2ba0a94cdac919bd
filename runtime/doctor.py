"""What this machine and installation can do, and what is missing."""

from __future__ import annotations

import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ..engines.cpu import available_cores, int8_weight_bits, processor_flags, processor_name
from ..engines.extras import EXTRAS, missing_modules
from .bandwidth import measure_bandwidth

# What decides which integer and half-precision kernels run.
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
    "skipdec",
    "numpy",
    "pydantic",
    "tokenizers",
    "onnxruntime",
    "onnxruntime-gpu",
    "tensorrt",
    "polygraphy",
    "torch",
    "transformers",
    "safetensors",
    "onnx",
    "onnx-ir",
    "onnxscript",
    "huggingface_hub",
    "matplotlib",
)
_GPU_FIELDS = ("name", "memory.total", "driver_version", "compute_cap")
_GPU_TIMEOUT = 20  # seconds; a driver that hangs must not hang the report


def examine_machine(*, threads: int | None = None, bandwidth: bool = True) -> dict[str, Any]:
    """Return versions, processor, GPUs and what is missing, as a JSON object.

    ``threads``: of the bandwidth measurement, None for all cores. It takes about a second and
    1 GiB of memory; ``bandwidth=False`` leaves it out.
    """
    flags = processor_flags()
    used = threads or available_cores()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _installed_version(name) for name in _DISTRIBUTIONS},
        "execution_providers": _execution_providers(),
        "processor": processor_name() or platform.processor(),
        "cores": available_cores(),
        "instruction_sets": [flag for flag in _RELEVANT_FLAGS if flag in flags],
        "int8_weight_bits": int8_weight_bits(),
        "gpus": _gpus(),
        "bandwidth": {"threads": used, "bytes_per_second": measure_bandwidth(used)}
        if bandwidth
        else None,
        "missing": [
            {"extra": extra, "modules": modules, "install": f"pip install 'skipdec[{extra}]'"}
            for extra in EXTRAS
            if (modules := list(missing_modules(extra)))
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
    from ..engines.ort import execution_providers

    return execution_providers()


def _gpus() -> list[dict[str, str]]:
    """One object a GPU that the NVIDIA driver knows; none without a driver that answers."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    query = [command, f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(
            query, capture_output=True, text=True, timeout=_GPU_TIMEOUT, check=True
        )
    except (subprocess.SubprocessError, OSError):
        return []
    return [
        dict(zip(_GPU_FIELDS, (value.strip() for value in line.split(",")), strict=True))
        for line in answer.stdout.splitlines()
    ]
