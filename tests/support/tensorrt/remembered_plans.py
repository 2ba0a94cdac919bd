"""Build each real plan once per test process and copy it for later equal engines.

Building takes a process that loads TensorRT. Tests of exports build the same engines repeatedly,
but test how the plans are used.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from skipdec.engines.trt.build import OnProgress, PlanReport, PlanRequest, build_plan

Progress = list[tuple[str, int, int]]


class RememberedPlans:
    """Keeps each plan in ``directory``, under a digest of its request and its weights."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._built: dict[str, tuple[PlanReport, Progress]] = {}

    def build(
        self, request: PlanRequest, output: Path, on_progress: OnProgress | None = None
    ) -> PlanReport:
        """Do as ``build_plan``, with the progress and the report of the first build."""
        report = on_progress or (lambda *step: None)
        key = _digest(request)
        if key not in self._built:
            progress: Progress = []

            def watch(phase: str, step: int, steps: int) -> None:
                progress.append((phase, step, steps))
                report(phase, step, steps)

            built = build_plan(request, output, watch)
            shutil.copyfile(output, self._directory / key)
            self._built[key] = built, progress
            return built
        built, progress = self._built[key]
        for each in progress:
            report(*each)
        shutil.copyfile(self._directory / key, output)
        return built


def _digest(request: PlanRequest) -> str:
    made_from = hashlib.sha256(request.model_dump_json(exclude={"weights_path"}).encode())
    for file in sorted(request.weights_path.parent.iterdir()):
        made_from.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
    return made_from.hexdigest()
