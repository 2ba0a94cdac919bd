"""The process that verifies: reads a VerificationRequest on stdin, writes a VerificationReport.

A process of its own (engines/host/worker.py) keeps torch, and all memory that verification
takes, out of the exporter.
"""

from __future__ import annotations

import os
import sys

from ...engines.backends.ort import use_shared_thread_pool
from ...engines.errors import SkipDecError
from ...engines.host.events import Events
from ...engines.host.worker import WorkerLines
from .bundle import verify_bundle
from .report import VerificationRequest


class _Forwarded(Events):
    """Writes a line for each event: the method's name and its arguments."""

    def __init__(self, lines: WorkerLines) -> None:
        self._lines = lines

    def stage(self, name: str, total: int | None = None) -> None:
        self._lines.write("progress", ["stage", name, total])

    def advance(self, item: str = "", steps: int = 1, *, detail: str = "") -> None:
        self._lines.write("progress", ["advance", item, steps])


def main() -> None:
    """Verify what stdin asks for."""
    request = VerificationRequest.from_json(sys.stdin.buffer.read())
    lines = WorkerLines()
    try:
        use_shared_thread_pool(len(os.sched_getaffinity(0)))
        report = verify_bundle(request, _Forwarded(lines))
    except SkipDecError as error:
        lines.write_error(error)
    else:
        lines.write("report", report.model_dump(mode="json"))


if __name__ == "__main__":
    main()
