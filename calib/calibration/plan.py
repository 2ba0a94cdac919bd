"""Open and check everything that a calibration needs."""

from __future__ import annotations

from dataclasses import dataclass

from ...engines.bundle import require_place
from ...engines.checking import Problems
from ...engines.errors import counted
from ..layerwise.plan import LayerwisePlan, open_plan
from .config import CalibrationConfig


@dataclass(frozen=True)
class CalibrationPlan(LayerwisePlan):
    """A checked calibration."""

    config: CalibrationConfig

    @property
    def summary(self) -> str:
        """One-line summary of the work."""
        return (
            f"{self.model.name}: {counted(len(self.observed), 'text')} for the ranges, "
            f"{len(self.held_out)} for the losses, schedule {self.schedule_text}"
        )


def plan_calibration(config: CalibrationConfig) -> CalibrationPlan:
    """Read the data, open the checkpoint and parse the schedule; no weights are read.

    Raises one SkipDecError with every problem: an output that exists, and those of ``open_plan``.
    """
    problems = Problems("calibrate")
    problems.attempt(require_place, config.output, force=config.force, data=config.data.path)
    return open_plan(CalibrationPlan, config, problems)
