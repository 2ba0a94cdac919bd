"""What an export or a build tells its caller while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from time import perf_counter
from typing import Literal

from .report import EngineReport

Stage = Literal["check", "trace", "build", "verify", "publish"]


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
