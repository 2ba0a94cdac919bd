"""The process that builds one plan: reads a request on stdin, writes JSON lines on stdout.

    {"progress": [phase, step, steps]} ...  then one of  {"report": {...}}  {"error": {...}}

Its argument is the file to write. SIGINT and SIGTERM make the builder stop at its next step.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import IO, Any

from .errors import SkipDecError
from .trt_build import PlanRequest
from .trt_library import load_library
from .trt_plan_builder import PlanBuilder


class Progress:
    """Writes the builder's steps and tells whether it may go on; called from its threads."""

    def __init__(self, lines: IO[str]) -> None:
        self.is_cancelled = False
        self._lines = lines
        self._lock = threading.Lock()
        self._steps: dict[str, int] = {}  # of each phase under way

    def cancel(self, *_: object) -> None:
        """Stop at the next step; also a signal handler."""
        self.is_cancelled = True

    def start(self, phase: str, steps: int) -> None:
        """See BuildProgress."""
        self._steps[phase] = steps

    def step(self, phase: str, step: int) -> bool:
        """See BuildProgress."""
        self.write("progress", [phase, step + 1, self._steps.get(phase, step + 1)])
        return not self.is_cancelled

    def finish(self, phase: str) -> None:
        """See BuildProgress."""
        self._steps.pop(phase, None)

    def write(self, kind: str, content: Any) -> None:  # noqa: ANN401  (any JSON value)
        """Write one line; a reader who has gone away wants no plan."""
        try:
            with self._lock:
                self._lines.write(json.dumps({kind: content}) + "\n")
                self._lines.flush()
        except BrokenPipeError:
            self.cancel()


def main() -> None:
    """Build what stdin asks for."""
    lines = _private_stdout()
    progress = Progress(lines)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, progress.cancel)
    request = PlanRequest.model_validate_json(sys.stdin.buffer.read())
    try:
        library = load_library(request.options.target)
        report = PlanBuilder(library, request, progress).build(Path(sys.argv[1]))
    except SkipDecError as error:
        kind = type(error).__name__
        progress.write(
            "error", {"kind": kind, "subject": error.subject, "problems": error.problems}
        )
    else:
        progress.write("report", report.model_dump(mode="json"))


def _private_stdout() -> IO[str]:
    """Take stdout for our lines alone; what the library prints goes to stderr."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return lines


if __name__ == "__main__":
    main()
