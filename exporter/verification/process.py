"""Starts a verification in a process of its own and hands back what it found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...engines.errors import VerificationError
from ...engines.host.events import Events
from ...engines.host.extras import require_extra
from ...engines.host.worker import WorkerCrashError, run_worker
from .report import VerificationReport, VerificationRequest

_WORKER = f"{__package__}.worker"


def run_verification(
    request: VerificationRequest, events: Events | None = None
) -> VerificationReport:
    """Do what ``request`` asks for; ``events`` is told of the stage ``verifying`` and each engine.

    Returns the report of a bundle that passed; raises VerificationError naming the worst tensor
    and engine of one that did not, and whatever error the checkpoint or bundle gave. This process
    stays small: torch is loaded in the other one only.
    """
    require_extra("export", "verification")

    def forward(line: list[Any]) -> None:
        method, *arguments = line  # see the worker
        getattr(events or Events(), method)(*arguments)

    try:
        content = run_worker(_WORKER, [], request.to_json(), forward)
    except WorkerCrashError as crash:
        raise _crashed(request.directory, crash) from None
    report = VerificationReport.model_validate(content)
    report.raise_if_failed(str(request.directory))
    return report


def _crashed(directory: Path, crash: WorkerCrashError) -> VerificationError:
    if crash.code < 0:
        problem = (
            f"the verifying process was killed by signal {-crash.code}, as happens when memory "
            "runs out; lower --verify-memory, or skip verification with --no-verify"
        )
    else:
        problem = f"the verifying process ended with code {crash.code}"
    return VerificationError(str(directory), crash.describe(problem))
