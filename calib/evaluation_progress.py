"""EvaluationProgress: a bar on stderr, where stderr is a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class EvaluationProgress:
    """Counts chunks of prompts, at every schedule of every bundle."""

    def __init__(self, console: Console) -> None:
        self._bar = Progress(
            TextColumn("evaluating"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("checking data and bundles", total=None)

    def __enter__(self) -> EvaluationProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, total: int) -> None:
        """``total`` steps will come."""
        self._bar.update(self._task, total=total, description="loading")

    def advance(self, done: str) -> None:
        """One step, which ``done`` names, was made."""
        self._bar.update(self._task, advance=1, description=done)
