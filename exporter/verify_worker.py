"""The process that verifies: reads a request on stdin, writes JSON lines on stdout.

    {"progress": {...}} ...  then one of  {"report": {...}}  {"error": {...}}

A process of its own keeps torch, and all memory that verification takes, out of the exporter.
"""

from __future__ import annotations

import json
import os
import sys
from typing import IO, Any

from ..engines.errors import SkipDecError
from ..engines.ort import use_shared_thread_pool
from .verify_bundle import verify_bundle
from .verify_report import Progress, VerificationRequest


def main() -> None:
    """Verify what stdin asks for."""
    request = VerificationRequest.model_validate_json(sys.stdin.buffer.read())
    with _private_stdout() as lines:

        def write(kind: str, content: Any) -> None:  # noqa: ANN401  (any JSON value)
            lines.write(json.dumps({kind: content}) + "\n")
            lines.flush()

        def on_progress(progress: Progress) -> None:
            write("progress", progress.model_dump())

        try:
            use_shared_thread_pool(len(os.sched_getaffinity(0)))
            report = verify_bundle(request, on_progress)
        except SkipDecError as error:
            kind = type(error).__name__
            write("error", {"kind": kind, "subject": error.subject, "problems": error.problems})
        else:
            write("report", report.model_dump(mode="json"))


def _private_stdout() -> IO[str]:
    """Take stdout for our lines alone; what libraries print goes to stderr."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return lines


if __name__ == "__main__":
    main()
