"""A bar over the steps of a command, on stderr where that is a terminal."""

from __future__ import annotations

from collections.abc import Iterable
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
