"""A bar over the steps of a command, on stderr where that is a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ...runtime.schedule.text import format_schedule
from ..calibration.calibrate import CalibrationEvents
from ..calibration.plan import CalibrationPlan
from ..rounding.plan import RoundingPlan
from ..rounding.round import RoundingEvents
from ..tuning.plan import TuneEvents, TuneStage, TuningPlan, depth_share

_TITLES: dict[TuneStage, str] = {
    "load": "loading",
    "validate": "held-out loss",
    "train": "tuning",
    "publish": "writing",
}


class StepProgress:
    """Counts steps that have names; ``title`` says what is done, ``checking`` what comes first."""

    def __init__(self, console: Console, title: str, *, checking: str, quiet: bool = False) -> None:
        self._console = console
        self._quiet = quiet
        self._bar = Progress(
            TextColumn(title),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task(f"checking {checking}", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, total: int, description: str = "") -> None:
        """``total`` steps will come."""
        self._bar.update(self._task, total=total, description=description)

    def advance(self, done: str) -> None:
        """One step, which ``done`` names, was made."""
        self._bar.update(self._task, advance=1, description=done)

    def say(self, text: str, warnings: Iterable[str]) -> None:
        """What will be done, unless quiet, after what deserves attention in any case."""
        for warning in warnings:
            self._console.print(f"[yellow]warning:[/yellow] {warning}", soft_wrap=True)
        if not self._quiet:
            self._console.print(text, soft_wrap=True, markup=False)


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


class TuneProgress(TuneEvents):
    """What is tuned, then a bar with the loss, where stderr is a terminal; else a line a loss."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console = console
        self._quiet = quiet
        self._plan: TuningPlan | None = None
        self._bar = Progress(
            TextColumn("{task.description:<13}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[loss]}"),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task("checking", total=None, loss="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Take the bar away; after Ctrl-C, say how to go on."""
        self._bar.stop()
        if self._plan is None or kind is None or not issubclass(kind, KeyboardInterrupt):
            return
        if self._plan.directories.last_checkpoint() is None:
            steps = self._plan.config.save_steps
            self._line(
                f"nothing was saved yet: the first save comes after --save-steps {steps}, or the "
                "last step; run the command again to start anew"
            )
        else:
            self._line("run the command again with --resume to go on from the last save")

    def planned(self, plan: TuningPlan) -> None:
        """Say what is tuned towards which schedule, and what deserves attention."""
        self._plan = plan
        for text in plan.warnings:
            self._console.print(f"[yellow]warning:[/yellow] {text}", soft_wrap=True)
        if self._quiet:
            return
        share = depth_share(plan.schedule, plan.data.examples)
        self._line(f"{plan.model.name}: {len(plan.data.examples)} examples")
        self._line(
            f"schedule {format_schedule(plan.schedule)}: {share:.0%} of full depth over the data, "
            "prompts included"
        )
        if plan.horizon_is_median:
            self._line(f"horizon {plan.schedule.horizon}: the median completion, in tokens")

    def stage_started(self, stage: TuneStage) -> None:
        """Start the bar anew."""
        self._bar.reset(self._task, total=None, description=_TITLES[stage], loss="")

    def step_finished(self, step: int, num_steps: int) -> None:
        """Advance the bar."""
        self._bar.update(self._task, completed=step, total=num_steps)

    def loss_logged(self, step: int, loss: float) -> None:
        """Show the loss in the bar, or on a line."""
        self._bar.update(self._task, loss=f"loss {loss:.3f}")
        if not self._quiet and not self._console.is_terminal:
            self._line(f"step {step}: loss {loss:.3f}")

    def _line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False)
