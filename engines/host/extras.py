"""Optional dependencies: which extra brings which modules."""

from __future__ import annotations

from importlib.util import find_spec

from ..errors import MissingExtraError, UsageError
from .installation import install_command

_EXPORT = (
    "torch",
    "transformers",
    "safetensors",
    "onnx",
    "onnx_ir",
    "onnxscript",
    "ml_dtypes",
    "huggingface_hub",
    "onnxruntime",
)
_MODULES = {
    "cpu": ("onnxruntime",),
    "gpu": ("onnxruntime", "cuda.bindings"),
    "tensorrt": ("tensorrt", "cuda.bindings", "onnx", "onnx_ir", "ml_dtypes"),
    "tensorrt-rtx": ("tensorrt_rtx", "cuda.bindings", "onnx", "onnx_ir", "ml_dtypes"),
    "rewrite": ("onnx", "onnx_ir", "ml_dtypes"),
    "export": _EXPORT,
    "calib": (*_EXPORT, "accelerate", "sacrebleu", "rouge_score"),
    "plot": ("matplotlib",),
    "serve": ("onnxruntime", "fastapi", "uvicorn", "prometheus_client"),
    "ray": ("onnxruntime", "ray.data"),
    "compare": ("onnxruntime", "onnx", "polygraphy"),
}

EXTRAS = tuple(_MODULES)


def missing_modules(extra: str) -> tuple[str, ...]:
    """Return the modules of ``extra`` that can't be found, in the order of the extra's list."""
    if extra not in _MODULES:
        raise UsageError("extra", f"{extra!r} is unknown; allowed: {', '.join(_MODULES)}")
    return tuple(module for module in _MODULES[extra] if not _is_installed(module))


def require_extra(extra: str, purpose: str) -> None:
    """Raise MissingExtraError, with the pip command, unless all modules of ``extra`` are there.

    ``purpose`` completes the sentence "... needs", e.g. ``"skipdec export"``.
    """
    missing = missing_modules(extra)
    if missing:
        raise MissingExtraError(
            purpose,
            f"needs {', '.join(missing)}, not installed here; run: {install_command(extra)}",
        )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package of a dotted name is not there
        return False
