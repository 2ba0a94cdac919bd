"""Verification in a child process."""

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

WORKER = f"{__package__}.worker"
_ENVIRONMENT = {
    # The thread pools of torch and ONNX Runtime alternate. By default a waiting OpenMP thread keeps
    # its core busy; if other work needs the cores, each product of a small model then takes 5 ms.
    "OMP_WAIT_POLICY": "passive",
    # glibc returns the memory of each large array to the kernel, which clears it again for the
    # next: a quarter of the time to verify a model with 1e9 parameters in a virtual machine.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}


def start_verifier(model: ModelSpec | None = None) -> Worker:
    """Start the process for ``run_verification``, whose imports take seconds.

    If it starts early, they overlap with other work. ``model``: also import what its reference
    model needs. Returns a context manager to enter.
    """
    environment = {name: value for name, value in _ENVIRONMENT.items() if name not in os.environ}
    prepared = [] if model is None else [model.model_dump_json()]
    return Worker(WORKER, prepared, environment)


def run_verification(
    request: VerificationRequest, events: Events | None = None, verifier: Worker | None = None
) -> VerificationReport:
    """Execute ``request``; ``events`` receives the stage ``verifying`` and each engine.

    ``verifier`` is a process from ``start_verifier`` for this call alone; None starts one.
    Returns the report of a bundle that passed. Raises VerificationError, naming the worst tensor
    and engine, for one that did not, and the errors of checkpoint and bundle. Only the other
    process loads torch.
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
    draft_layer: Path | None = None,
    atol: float | None = None,
    max_divergence: float | None = None,
    verify_memory: int = 8 * GIB,
    events: Events | None = None,
) -> VerificationReport | None:
    """Check all files of the bundle at ``path``; with ``source``, also its engines' results.

    ``source``: the checkpoint from which it was exported. ``ranges``: the export's, if any.
    ``draft_layer``: the directory of its draft layer; without it, that layer is not compared.
    ``atol``: the largest difference allowed, as a fraction of the largest value; None: depends on
    the precision. ``max_divergence``: bound on the divergence of next-token distributions, in nats
    per token; None: depends on the precision of a quantised bundle. ``verify_memory``: bytes up to
    which all engines are loaded at once. Returns None without ``source``.

    Raises BundleError for a file that differs from the manifest, and the errors of
    ``run_verification``.
    """
    if source is None:
        EngineBundle.open(path, verify="full")
        return None
    CheckpointSource.require(source, "source")
    request = VerificationRequest(
        directory=Path(path),
        source=source,
        ranges=ranges,
        draft_layer=draft_layer,
        atol=atol,
        max_divergence=max_divergence,
        verify_memory=verify_memory,
    )
    return run_verification(request, events)


def _crashed(directory: Path, crash: WorkerCrashError) -> VerificationError:
    if crash.code < 0:
        problem = (
            f"the verifying process was killed by signal {-crash.code}, as happens when memory "
            "runs out; lower verify_memory, or skip verification with --no-verify"
        )
    else:
        problem = f"the verifying process ended with code {crash.code}"
    return VerificationError(str(directory), crash.describe(problem))
