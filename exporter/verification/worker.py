"""The verifying process: reads a VerificationRequest from stdin, writes a VerificationReport.

A separate process (engines/host/worker.py) keeps the memory of verification out of the exporter.
It may be started long before the request arrives. With a ModelSpec as argument, it imports what the
reference of such a model needs.
"""

from __future__ import annotations

import os
import sys

from ...engines.errors import SkipDecError
from ...engines.host.events import Events
from ...engines.host.process import collection_paused
from ...engines.host.processor import available_cores
from ...engines.host.worker import WorkerLines
from ...engines.manifest import ModelSpec

with collection_paused():
    from ...engines.backends.ort import use_shared_thread_pool
    from ..architecture.architecture import family_architecture
    from .bundle import verify_bundle
    from .report import VerificationRequest


class _Forwarded(Events):
    """Writes a line for each event: the method's name and its arguments.

    Exits the process when the parent no longer reads them, because it was killed.
    """

    def __init__(self, lines: WorkerLines) -> None:
        self._lines = lines

    def stage(self, name: str, total: int | None = None) -> None:
        self._write("stage", name, total)

    def advance(self, item: str = "", steps: int = 1, *, detail: str = "") -> None:
        self._write("advance", item, steps)

    def _write(self, method: str, *arguments: object) -> None:
        self._lines.write("progress", [method, *arguments])
        if not self._lines.is_read:
            sys.exit("the parent process no longer waits for this verification")


def main() -> None:
    """Verify the request on stdin; do nothing if there is none because the parent died."""
    lines = WorkerLines()
    if arguments := sys.argv[1:]:
        _prepare(ModelSpec.model_validate_json(arguments[0]))
    content = sys.stdin.buffer.read()
    if not content:
        return
    request = VerificationRequest.from_json(content)
    try:
        use_shared_thread_pool(available_cores())
        report = verify_bundle(request, _Forwarded(lines))
    except (SkipDecError, OSError) as error:
        lines.write_error(error)
    else:
        lines.write("report", report.model_dump(mode="json"))


def _prepare(model: ModelSpec) -> None:
    """Build the reference once, without memory for parameters, to trigger its imports."""
    with collection_paused():
        family_architecture(model.family).reference_model(model)


if __name__ == "__main__":
    main()
    sys.stderr.flush()
    os._exit(0)  # destroying torch's objects would take longer than a small verification
