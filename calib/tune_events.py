"""What a tuning tells whoever watches it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .tune_plan import TuningPlan

TuneStage = Literal["load", "validate", "train", "publish"]


class TuneEvents:
    """Receives events and ignores them; subclass to show them."""

    def planned(self, plan: TuningPlan) -> None:
        """Everything is checked, work begins."""

    def stage_started(self, stage: TuneStage) -> None:
        """A stage begins."""

    def step_finished(self, step: int, num_steps: int) -> None:
        """``step`` of ``num_steps`` optimizer steps are done."""

    def loss_logged(self, step: int, loss: float) -> None:
        """The mean loss since the last one, nats a token."""
