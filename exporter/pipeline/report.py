"""The report of an export or a build, its stages and its peak memory; not part of a bundle."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Literal, Self

from pydantic import Field

from ...engines.checking import FrozenModel
from ...engines.host.events import Events
from ...engines.host.signals import raise_if_interrupted
from ...engines.manifest import BuildSpec, Kernels, PrecisionSpec
from ...engines.memory import anonymous_bytes
from ...engines.trt.build import PlanReport
from ..verification.report import VerificationReport

Stage = Literal["check", "trace", "build", "verify", "publish"]
_TITLES: dict[Stage, str] = {
    "check": "checking",
    "trace": "tracing",
    "build": "building",
    "verify": "verifying",
    "publish": "publishing",
}
_INTERVAL_SECONDS = 0.02


class EngineReport(FrozenModel):
    """One engine: its files' size in bytes and its build time."""

    name: str
    size: int
    seconds: float
    resumed: bool = Field(description="finished by an earlier, interrupted run")
    plans: tuple[PlanReport, ...] = Field(default=(), description="TensorRT's, one per KV capacity")

    @property
    def summary(self) -> str:
        """Return megabytes and seconds, e.g. ``12.6 MB    0.31 s``."""
        how = "reused" if self.resumed else f"{self.seconds:7.2f} s"
        return f"{self.size / 1e6:10,.1f} MB {how}"


class ExportReport(FrozenModel):
    """A finished export or build; sizes in bytes, times in seconds."""

    output: Path
    digest: str = Field(description="of the bundle's manifest")
    model: str
    target: str
    kernels: Kernels | None = Field(description="operators of the graphs; None: the target's own")
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
        """Return the duration of all stages."""
        return sum(self.stage_seconds.values())


class Stages:
    """Announces the stages of one run and records their durations in seconds."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, stage: Stage, items: int | None = None) -> Iterator[None]:
        """Run a ``with`` block as ``stage`` with ``items`` steps, and report its duration.

        Raises Interrupted if a signal has been received but not handled.
        """
        raise_if_interrupted()
        title = _TITLES[stage]
        self.events.stage(title, items)
        start = perf_counter()
        yield
        self.seconds[stage] = perf_counter() - start
        self.events.note(f"{title:<12} {self.seconds[stage]:23.2f} s")


class PeakMemory:
    """Samples RssAnon (memory without mapped files) while the ``with`` block runs.

    ``peak`` is the largest value seen, in bytes; 0 on a system without /proc.
    """

    def __init__(self) -> None:
        self.peak = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="peak-memory", daemon=True)

    def __enter__(self) -> Self:
        if anonymous_bytes():
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
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
