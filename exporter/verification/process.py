"""Starts a verification in a process of its own and hands back what it found."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ...engines.bundle import EngineBundle
from ...engines.errors import VerificationError
from ...engines.host.events import Events
from ...engines.host.installation import require_extra
from ...engines.host.worker import Worker, WorkerCrashError
from ...engines.manifest import ModelSpec
from ..config import GIB, CheckpointSource
from .report import VerificationReport, VerificationRequest

_WORKER = f"{__package__}.worker"
# The pools of torch and ONNX Runtime take turns. By default an OpenMP thread that waits keeps its
# core busy: where others want the cores too, each product of a small model then takes 5 ms.
_THREADS = {"OMP_WAIT_POLICY": "passive"}


def start_verifier(model: ModelSpec | None = None, verify_memory: int = 0) -> Worker:
    """Start the process that ``run_verification`` takes: its imports take seconds.

    Started early, they overlap with other work. ``model``: import what its reference model needs,
    too, if that fits in ``verify_memory`` bytes. A context manager, to be entered.
    """
    environment = {name: value for name, value in _THREADS.items() if name not in os.environ}
    prepared = [] if model is None else [model.model_dump_json(), str(verify_memory)]
    return Worker(_WORKER, prepared, environment)


def run_verification(
    request: VerificationRequest, events: Events | None = None, verifier: Worker | None = None
) -> VerificationReport:
    """Do what ``request`` asks for; ``events`` is told of the stage ``verifying`` and each engine.

    ``verifier`` is a process of ``start_verifier`` for this call alone; None starts one.
    Returns the report of a bundle that passed; raises VerificationError naming the worst tensor
    and engine of one that did not, and whatever error the checkpoint or bundle gave. This process
    stays small: torch is loaded in the other one only.
    """
    require_extra("export", "verification")

    def forward(line: list[Any]) -> None:
        method, *arguments = line  # see the worker
        getattr(events or Events(), method)(*arguments)

    try:
        with ExitStack() as stack:
            process = verifier or stack.enter_context(start_verifier())
            content = process.run(request.to_json(), forward)
    except WorkerCrashError as crash:
        raise _crashed(request.directory, crash) from None
    report = VerificationReport.model_validate(content)
    report.raise_if_failed(str(request.directory))
    for warning in report.warnings:
        (events or Events()).warn(warning)
    return report


def verify_bundle(
    path: str | Path,
    source: CheckpointSource | None = None,
    *,
    ranges: Path | None = None,
    atol: float | None = None,
    max_divergence: float | None = None,
    verify_memory: int = 8 * GIB,
    events: Events | None = None,
) -> VerificationReport | None:
    """Check every byte of the bundle at ``path``; with ``source``, what its engines compute, too.

    ``source``: the checkpoint that it was made of. ``ranges``: the export's, if it had some.
    ``atol``: the largest difference, as a fraction of the largest value; None: by precision.
    ``max_divergence``: what next-token distributions may diverge by, in nats a token; None: by
    precision, of a quantised bundle. ``verify_memory``: bytes for a whole reference model.
    Returns None without ``source``.

    Raises BundleError for a file that is not as it was, and what ``run_verification`` does.
    """
    if source is None:
        EngineBundle.open(path, verify="full")
        return None
    opened = EngineBundle.open(path)
    request = VerificationRequest(
        directory=opened.path,
        source=source,
        precision=opened.manifest.precision,
        kernels=opened.manifest.kernels,
        ranges=ranges,
        atol=atol,
        max_divergence=max_divergence,
        verify_memory=verify_memory,
    )
    return run_verification(request, events)


def _crashed(directory: Path, crash: WorkerCrashError) -> VerificationError:
    if crash.code < 0:
        problem = (
            f"the verifying process was killed by signal {-crash.code}, as happens when memory "
            "runs out; lower --verify-memory, or skip verification with --no-verify"
        )
    else:
        problem = f"the verifying process ended with code {crash.code}"
    return VerificationError(str(directory), crash.describe(problem))
