"""The process that builds one plan: reads a request on stdin, writes JSON lines on stdout.

The line format is that of ``host/worker.py``; progress is [phase, step, steps]. The argument is
the output file. SIGINT and SIGTERM stop the builder at its next step.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from ..errors import SkipDecError
from ..host.worker import WorkerLines
from .build import PlanRequest
from .builder import PlanBuilder
from .library import load_library


class Progress:
    """Reports the builder's steps and cancels it on request; called from the builder's threads."""

    def __init__(self, lines: WorkerLines) -> None:
        self._is_cancelled = False
        self._lines = lines
        self._steps: dict[str, int] = {}  # of each phase in progress

    @property
    def is_cancelled(self) -> bool:
        """Return True if a signal arrived or the parent no longer reads."""
        return self._is_cancelled or not self._lines.is_read

    def cancel(self, *_: object) -> None:
        """Stop at the next step; also a signal handler."""
        self._is_cancelled = True

    def start(self, phase: str, steps: int) -> None:
        """Begin a phase of ``steps`` steps."""
        self._steps[phase] = steps

    def step(self, phase: str, step: int) -> bool:
        """Report a step; return False to stop the build."""
        self._lines.write("progress", [phase, step + 1, self._steps.get(phase, step + 1)])
        return not self.is_cancelled

    def finish(self, phase: str) -> None:
        """End a phase."""
        self._steps.pop(phase, None)


def main() -> None:
    """Build the plan requested on stdin."""
    lines = WorkerLines()
    progress = Progress(lines)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, progress.cancel)
    request = PlanRequest.model_validate_json(sys.stdin.buffer.read())
    try:
        library = load_library(request.options.target)
        report = PlanBuilder(library, request, progress).build(Path(sys.argv[1]))
    except SkipDecError as error:
        lines.write_error(error)
    else:
        lines.write("report", report.model_dump(mode="json"))


if __name__ == "__main__":
    main()
