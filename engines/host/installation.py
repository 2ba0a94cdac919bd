"""The installation of skipdec: its version, its optional dependencies, and how to add one."""

from __future__ import annotations

import json
import shlex
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ..errors import MissingExtraError, choice

_ROOT = Path(__file__).resolve().parents[2]  # the package; in a checkout, the repository


def own_version() -> str:
    """Return the version in pyproject.toml, also for a checkout that is not installed."""
    try:
        return distribution("skipdec").version
    except PackageNotFoundError:
        document = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        return str(document["project"]["version"])


def install_command(extra: str, *options: str) -> str:
    """Return the pip command that adds ``extra`` to this installation from its source.

    >>> install_command("plot")
    "pip install -e '/home/me/skipdec[plot]'"
    """
    return shlex.join(["pip", "install", *options, *_requirement(extra)])


def _requirement(extra: str) -> list[str]:
    origin: dict[str, Any]  # pip's record of where a distribution came from; {} if from an index
    try:
        record = distribution("skipdec").read_text("direct_url.json")
        origin = json.loads(record) if record else {}
    except PackageNotFoundError:
        origin = {"url": _ROOT.as_uri(), "dir_info": {"editable": True}}
    address = str(origin.get("url", ""))
    parts = urlsplit(address)
    if not address:
        return [f".[{extra}]"]
    if parts.scheme != "file" or "vcs_info" in origin:
        kind = origin.get("vcs_info", {}).get("vcs")
        return [f"skipdec[{extra}] @ {f'{kind}+' if kind else ''}{address}"]
    path = unquote(parts.path)
    editable = ["-e"] if origin.get("dir_info", {}).get("editable") else []
    return [*editable, f"{path}[{extra}]"] if Path(path).exists() else [f".[{extra}]"]


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
    "build": ("onnx", "onnx_ir", "ml_dtypes"),
    "export": _EXPORT,
    "calib": (*_EXPORT, "accelerate", "sacrebleu", "rouge_score"),
    "plot": ("matplotlib",),
    "chat": ("jinja2",),
    "serve": ("onnxruntime", "fastapi", "uvicorn", "prometheus_client", "jinja2"),
    "compare": ("onnxruntime", "onnx", "polygraphy"),
}

EXTRAS = tuple(_MODULES)


def missing_modules(extra: str) -> tuple[str, ...]:
    """Return the modules of ``extra`` that can't be found, in the order of the extra's list."""
    modules = choice(_MODULES, extra, "extra")
    return tuple(module for module in modules if not is_installed(module))


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


def is_installed(module: str) -> bool:
    """Return True if ``module`` can be found; its packages are imported, but not the module."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package of a dotted name is not there
        return False
