"""The process that builds one plan, written to the path of its argument (``host/worker.py``).

Progress is [phase, step, steps]. SIGINT and SIGTERM stop the builder at its next step.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from ..errors import SkipDecError
from ..host.worker import WorkerLines
from .build import PlanRequest
from .builder import BuildProgress, PlanBuilder
from .library import load_library


def main() -> None:
    """Build the plan requested on stdin."""
    lines = WorkerLines()
    progress = BuildProgress(lines)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, progress.cancel)
    request = PlanRequest.model_validate_json(sys.stdin.buffer.read())
    try:
        library = load_library(request.options.target)
        report = PlanBuilder(library, request, progress).build(Path(sys.argv[1]))
    except (SkipDecError, OSError) as error:
        lines.write_error(error)
    else:
        lines.write("report", report.model_dump(mode="json"))


if __name__ == "__main__":
    main()
