"""The TensorRT library of a target: import, version check, log and errors.

``tensorrt`` is the full library, ``tensorrt_rtx`` the one for workstation GPUs. Their Python APIs
have the same names; tests/engines checks every name that is used against both.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any, Literal

from ..errors import EnvironmentMismatchError
from ..host.installation import install_command, require_extra

TensorRtTarget = Literal["tensorrt", "tensorrt-rtx"]

LOGGER_NAME = "skipdec.tensorrt"
_MAX_RECORDS = 32  # of errors; the first ones reveal the cause

_MODULES: Mapping[str, str] = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
# First version with in-place KV-cache updates and get_aliased_input_tensor.
_OLDEST: Mapping[str, tuple[int, ...]] = {"tensorrt": (10, 15), "tensorrt-rtx": (1, 7)}


@dataclass(frozen=True)
class TensorRtLibrary:
    """An imported TensorRT library."""

    target: TensorRtTarget
    module: ModuleType = field(repr=False)  # tensorrt or tensorrt_rtx
    version: str  # e.g. 10.16.1.11

    @property
    def compute_capabilities(self) -> Mapping[str, Any]:
        """The library's values for GPUs that need not be here for a build, by e.g. ``"8.9"``.

        Empty for the full library, which only builds for the GPU on which it times kernels.
        """
        trt = self.module
        if not hasattr(trt, "ComputeCapability"):
            return {}
        names = trt.ComputeCapability.__members__  # NONE, CURRENT, SM75, ..., SM120, SM121
        found = {f"{name[2:-1]}.{name[-1]}": name for name in names if name.startswith("SM")}
        return {number: names[found[number]] for number in sorted(found, key=float)}


def load_library(target: TensorRtTarget) -> TensorRtLibrary:
    """Import the library of ``target``.

    Raises MissingExtraError if it is not installed, and EnvironmentMismatchError if it can't be
    loaded or is too old for in-place KV caches.
    """
    require_extra(target, f"target {target}")
    name = _MODULES[target]
    try:
        module = importlib.import_module(name)
    except (ImportError, OSError) as error:  # bindings without their library
        raise EnvironmentMismatchError(
            f"target {target}",
            f"{name} is installed but can't be loaded ({error}); install it again: "
            f"{install_command(target, '--force-reinstall')}",
        ) from error
    version = str(module.__version__)
    oldest = _OLDEST[target]
    if tuple(int(part) for part in version.split(".")[:2]) < oldest:
        raise EnvironmentMismatchError(
            f"target {target}",
            f"{name} is version {version}; needed: {'.'.join(map(str, oldest))} or later, "
            f"which updates KV caches in place; run: {install_command(target, '--upgrade')}",
        )
    return TensorRtLibrary(target, module, version)


@cache
def logger(library: TensorRtLibrary) -> Any:  # noqa: ANN401  (trt.ILogger)
    """Return the process-wide ``ILogger``, since TensorRT requires a single one.

    It forwards to Python's logger ``skipdec.tensorrt`` at the same severity.
    """
    trt = library.module
    severity = trt.ILogger.Severity
    levels = {
        severity.INTERNAL_ERROR: logging.CRITICAL,
        severity.ERROR: logging.ERROR,
        severity.WARNING: logging.WARNING,
        severity.INFO: logging.INFO,
        severity.VERBOSE: logging.DEBUG,
    }
    target = logging.getLogger(LOGGER_NAME)

    class PythonLogger(trt.ILogger):  # type: ignore[misc, name-defined]
        """Forwards to Python's logging."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:  # noqa: ANN401
            """Forward a message; TensorRT calls this from any of its threads."""
            target.log(levels[severity], "%s", message)

    return PythonLogger()


def error_recorder(library: TensorRtLibrary) -> Any:  # noqa: ANN401  (trt.IErrorRecorder)
    """Create a recorder of every error of TensorRT's objects, which ``take()`` returns as text."""
    trt = library.module

    class Recorder(trt.IErrorRecorder):  # type: ignore[misc, name-defined]
        """A recorder that TensorRT calls from any of its threads."""

        def __init__(self) -> None:
            trt.IErrorRecorder.__init__(self)
            self._records: list[tuple[Any, str]] = []
            self._has_overflowed = False

        def report_error(self, code: Any, description: str) -> bool:  # noqa: ANN401
            """Keep one error; the result False lets TensorRT continue if it can."""
            self._has_overflowed |= len(self._records) >= _MAX_RECORDS
            if not self._has_overflowed:
                self._records.append((code, description))
            return False

        def num_errors(self) -> int:
            """Return the number of errors kept."""
            return len(self._records)

        def get_error_code(self, index: int) -> Any:  # noqa: ANN401  (trt.ErrorCodeTRT)
            """Return the code of error ``index``."""
            return self._records[index][0]

        def get_error_desc(self, index: int) -> str:
            """Return the message of error ``index``."""
            return self._records[index][1]

        def has_overflowed(self) -> bool:
            """Return True if errors were dropped."""
            return self._has_overflowed

        def clear(self) -> None:
            """Forget all errors."""
            self._records.clear()
            self._has_overflowed = False

        def take(self) -> str:
            """Return all errors as one text, and clear them."""
            texts = [f"{code.name}: {description}" for code, description in self._records]
            if self._has_overflowed:
                texts.append("and more")
            self.clear()
            return "; ".join(texts) or "TensorRT gave no reason"

    return Recorder()
