"""What ``skipdec round`` shows on stderr while it works."""

from __future__ import annotations

from rich.console import Console

from .rounding import RoundingEvents
from .rounding_plan import RoundingPlan
from .step_progress import StepProgress


class RoundingProgress(StepProgress, RoundingEvents):
    """What is rounded on what, then a bar over the engines."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        super().__init__(console, "rounding", checking="data and checkpoint", quiet=quiet)

    def planned(self, plan: RoundingPlan) -> None:
        """Say what is rounded, and what deserves attention."""
        self.say(
            f"{plan.model.name}: int4 of {plan.config.target} in blocks of "
            f"{plan.config.block_size}, {len(plan.observed)} texts to round on, "
            f"{len(plan.held_out)} for the losses, schedule {plan.schedule_text}",
            plan.warnings,
        )
        self.begin(plan.model.num_layers + 1)

    def engine_finished(self, engine: str) -> None:
        """Advance the bar."""
        self.advance(engine)
