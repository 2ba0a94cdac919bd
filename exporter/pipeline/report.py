"""What an export did: for people and machines that run it, never part of a bundle."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from time import perf_counter
from types import TracebackType
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from ...engines.manifest import BuildSpec, PrecisionSpec
from ...engines.trt.build import PlanReport
from ..verification.report import VerificationReport

Stage = Literal["check", "trace", "build", "verify", "publish"]
_STATUS = Path("/proc/self/status")
_INTERVAL_SECONDS = 0.02


class _Report(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EngineReport(_Report):
    """One engine: its files' size in bytes and how long it took."""

    name: str
    size: int
    seconds: float
    resumed: bool = Field(description="finished by an earlier, interrupted run")
    plans: tuple[PlanReport, ...] = Field(default=(), description="TensorRT's, a KV capacity each")


class ExportReport(_Report):
    """A finished export or build. Sizes in bytes, times in seconds."""

    output: Path
    digest: str = Field(description="of the bundle's manifest")
    model: str
    target: str
    precision: PrecisionSpec
    build: BuildSpec | None = Field(default=None, description="of TensorRT's targets")
    schedule: str
    engines: tuple[EngineReport, ...]
    size: int
    stage_seconds: dict[str, float]
    peak_memory: int = Field(description="largest RssAnon seen, of this process alone")
    verification: VerificationReport | None = Field(
        description="None: --no-verify, or built without torch"
    )
    warnings: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """All stages together."""
        return sum(self.stage_seconds.values())


class ExportEvents:
    """Receives an export's or a build's progress; this one ignores everything.

    One method is called at a time, ``plan_progress`` from threads that wait for builders.
    Derive from it and override what you want to show.
    """

    def warning(self, text: str) -> None:
        """Something that the user should know; the export goes on."""

    def stage_started(self, stage: Stage, items: int) -> None:
        """A stage of ``items`` steps begins."""

    def item_finished(self, stage: Stage, item: str) -> None:
        """One step of a stage is done, e.g. ``("trace", "layer")``."""

    def plan_progress(self, plan: str, phase: str, step: int, steps: int) -> None:
        """TensorRT has done ``step`` of ``steps`` of a phase of one plan, e.g. layer_007.t256."""

    def engine_finished(self, engine: EngineReport) -> None:
        """One engine is built, or was found built by an interrupted run."""

    def stage_finished(self, stage: Stage, seconds: float) -> None:
        """A stage is done."""


class SerializedEvents(ExportEvents):
    """Passes events on, one at a time, from whatever thread they come."""

    def __init__(self, events: ExportEvents) -> None:
        self._events = events
        self._lock = RLock()

    def warning(self, text: str) -> None:
        """See ExportEvents."""
        with self._lock:
            self._events.warning(text)

    def stage_started(self, stage: Stage, items: int) -> None:
        """See ExportEvents."""
        with self._lock:
            self._events.stage_started(stage, items)

    def item_finished(self, stage: Stage, item: str) -> None:
        """See ExportEvents."""
        with self._lock:
            self._events.item_finished(stage, item)

    def plan_progress(self, plan: str, phase: str, step: int, steps: int) -> None:
        """See ExportEvents."""
        with self._lock:
            self._events.plan_progress(plan, phase, step, steps)

    def engine_finished(self, engine: EngineReport) -> None:
        """See ExportEvents."""
        with self._lock:
            self._events.engine_finished(engine)

    def stage_finished(self, stage: Stage, seconds: float) -> None:
        """See ExportEvents."""
        with self._lock:
            self._events.stage_finished(stage, seconds)


class Stages:
    """Announces the stages of one run and keeps how long each took, in seconds."""

    def __init__(self, events: ExportEvents) -> None:
        self.events = events
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, stage: Stage, items: int) -> Iterator[None]:
        """Run a ``with`` block as ``stage``, which has ``items`` steps."""
        self.events.stage_started(stage, items)
        start = perf_counter()
        yield
        self.seconds[stage] = perf_counter() - start
        self.events.stage_finished(stage, self.seconds[stage])


class PeakMemory:
    """Samples RssAnon, i.e. memory without mapped files, while the ``with`` block runs.

    ``peak`` is the largest value seen, in bytes; 0 where the system has no /proc.
    """

    def __init__(self) -> None:
        self.peak = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="peak-memory", daemon=True)

    def __enter__(self) -> Self:
        if _STATUS.exists():
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Take a last sample and stop."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self.peak = max(self.peak, anonymous_bytes())
            if self._stopped.wait(_INTERVAL_SECONDS):
                self.peak = max(self.peak, anonymous_bytes())
                return


def anonymous_bytes() -> int:
    """RssAnon of this process, in bytes."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
