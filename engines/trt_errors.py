"""What TensorRT has to say about a failure, as part of our errors."""

from __future__ import annotations

from typing import Any, Protocol

from .errors import SkipDecError
from .trt_library import TensorRtLibrary

_MOST_RECORDS = 32  # the first ones tell the cause


class ErrorRecorder(Protocol):
    """A ``trt.IErrorRecorder`` whose records we can take."""

    def take(self) -> str:
        """All records since the last call, as one text; they are forgotten."""
        ...


def error_recorder(library: TensorRtLibrary) -> ErrorRecorder:
    """Make a recorder that TensorRT's objects may be given; every error lands in it."""
    trt = library.module

    class Recorder(trt.IErrorRecorder):  # type: ignore[misc, name-defined]
        """Called by TensorRT, from any of its threads."""

        def __init__(self) -> None:
            trt.IErrorRecorder.__init__(self)
            self._records: list[tuple[Any, str]] = []
            self._has_overflowed = False

        def report_error(self, code: Any, description: str) -> bool:  # noqa: ANN401
            """Keep one error; False: TensorRT may go on if it can."""
            self._has_overflowed |= len(self._records) >= _MOST_RECORDS
            if not self._has_overflowed:
                self._records.append((code, description))
            return False

        def num_errors(self) -> int:
            """How many are kept."""
            return len(self._records)

        def get_error_code(self, index: int) -> Any:  # noqa: ANN401  (trt.ErrorCodeTRT)
            """Of the error number ``index``."""
            return self._records[index][0]

        def get_error_desc(self, index: int) -> str:
            """Of the error number ``index``."""
            return self._records[index][1]

        def has_overflowed(self) -> bool:
            """Whether errors were dropped."""
            return self._has_overflowed

        def clear(self) -> None:
            """Forget all errors."""
            self._records.clear()
            self._has_overflowed = False

        def take(self) -> str:
            """See ErrorRecorder."""
            texts = [f"{code.name}: {description}" for code, description in self._records]
            if self._has_overflowed:
                texts.append("and more")
            self.clear()
            return "; ".join(texts) or "TensorRT gave no reason"

    return Recorder()


class EngineErrors:
    """Turns the failures of one engine's calls into errors with its name and TensorRT's words."""

    def __init__(self, engine: str, recorder: ErrorRecorder) -> None:
        self._engine = engine
        self._recorder = recorder

    def check(self, succeeded: bool, action: str) -> None:
        """Raise SkipDecError unless TensorRT ``succeeded`` to do ``action``."""
        if not succeeded:
            raise SkipDecError(
                f"engine {self._engine}", f"TensorRT failed to {action}: {self._recorder.take()}"
            )
