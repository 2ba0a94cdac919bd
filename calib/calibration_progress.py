"""What ``skipdec calibrate`` shows on stderr while it works."""

from __future__ import annotations

from rich.console import Console

from .calibration import CalibrationEvents
from .calibration_plan import CalibrationPlan
from .step_progress import StepProgress


class CalibrationProgress(StepProgress, CalibrationEvents):
    """What is calibrated on what, then a bar over the texts to write and the engines."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        super().__init__(console, "calibrating", checking="data and checkpoint", quiet=quiet)

    def planned(self, plan: CalibrationPlan) -> None:
        """Say what is calibrated, and what deserves attention."""
        source = "" if plan.writer is None else f" (completions by {plan.writer.path.name})"
        self.say(
            f"{plan.model.name}: {len(plan.observed)} texts for the ranges{source}, "
            f"{len(plan.held_out)} for the losses, schedule {plan.schedule_text}",
            plan.warnings,
        )
        to_write = 0 if plan.writer is None else len(plan.observed)
        self.begin(to_write + plan.model.num_layers + 1)

    def text_generated(self) -> None:
        """Advance the bar."""
        self.advance("generating")

    def engine_finished(self, engine: str) -> None:
        """Advance the bar."""
        self.advance(engine)
