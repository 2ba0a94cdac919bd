"""What ``skipdec round`` shows on stderr while it works."""

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

from .rounding_plan import RoundingPlan


class RoundingProgress:
    """What is rounded on what, then a bar over the engines where stderr is a terminal."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console = console
        self._quiet = quiet
        self._bar = Progress(
            TextColumn("rounding"),
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

    def planned(self, plan: RoundingPlan) -> None:
        """Say what is rounded, and what deserves attention."""
        for text in plan.warnings:
            self._console.print(f"[yellow]warning:[/yellow] {text}", soft_wrap=True)
        if not self._quiet:
            self._console.print(
                f"{plan.model.name}: int4 of {plan.config.target} in blocks of "
                f"{plan.config.block_size}, {len(plan.observed)} texts to round on, "
                f"{len(plan.held_out)} for the losses, schedule {plan.schedule_text}",
                soft_wrap=True,
                markup=False,
            )
        self._bar.update(self._task, total=plan.model.num_layers + 1, description="")

    def engine_finished(self, engine: str) -> None:
        """Advance the bar."""
        self._bar.update(self._task, advance=1, description=engine)
