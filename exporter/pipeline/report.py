"""What an export did: for people and machines that run it, never part of a bundle."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from ..engines.manifest import BuildSpec, PrecisionSpec
from ..engines.trt.build import PlanReport
from .verify_report import VerificationReport


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
