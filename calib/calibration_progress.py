"""What ``skipdec calibrate`` shows on stderr while it works."""

from __future__ import annotations

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

from .calibration_plan import CalibrationPlan


class CalibrationProgress:
    """What is calibrated on what, then a bar over the engines where stderr is a terminal."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console = console
        self._quiet = quiet
        self._bar = Progress(
            TextColumn("calibrating"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task("checking data and checkpoint", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def planned(self, plan: CalibrationPlan) -> None:
        """Say what is calibrated, and what deserves attention."""
        for text in plan.warnings:
            self._console.print(f"[yellow]warning:[/yellow] {text}", soft_wrap=True)
        if not self._quiet:
            source = "" if plan.writer is None else f" (completions by {plan.writer.path.name})"
            self._console.print(
                f"{plan.model.name}: {len(plan.observed)} texts for the ranges{source}, "
                f"{len(plan.held_out)} for the losses, schedule {plan.schedule_text}",
                soft_wrap=True,
                markup=False,
            )
        steps = plan.model.num_layers + 1
        if plan.writer is not None:
            steps += len(plan.observed)
        self._bar.update(self._task, total=steps, description="")

    def text_generated(self) -> None:
        """Advance the bar."""
        self._bar.update(self._task, advance=1, description="generating")

    def engine_finished(self, engine: str) -> None:
        """Advance the bar."""
        self._bar.update(self._task, advance=1, description=engine)
