"""What an export tells its caller while it runs."""

from __future__ import annotations

from typing import Literal

from .report import EngineReport

Stage = Literal["check", "trace", "build", "verify", "publish"]


class ExportEvents:
    """Receives an export's progress, from one thread at a time; this one ignores everything.

    Derive from it and override what you want to show.
    """

    def warning(self, text: str) -> None:
        """Something that the user should know; the export goes on."""

    def stage_started(self, stage: Stage, items: int) -> None:
        """A stage of ``items`` steps begins."""

    def item_finished(self, stage: Stage, item: str) -> None:
        """One step of a stage is done, e.g. ``("trace", "layer")``."""

    def engine_finished(self, engine: EngineReport) -> None:
        """One engine is built, or was found built by an interrupted run."""

    def stage_finished(self, stage: Stage, seconds: float) -> None:
        """A stage is done."""
