"""FitProgress: what a fit is doing, on stderr, where stderr is a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class FitProgress:
    """A phase and the completions scored so far; how many will come is not known beforehand."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TextColumn("{task.fields[done]}", markup=False),
            TextColumn("{task.completed:.0f} completions scored"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("checking data and model", total=None, done="")

    def __enter__(self) -> FitProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def phase(self, name: str) -> None:
        """What is done from now on."""
        self._bar.update(self._task, description=name, done="")

    def note(self, text: str) -> None:
        """A line of its own, above the bar; also where stderr is no terminal."""
        self._console.print(text, markup=False, soft_wrap=True)

    def advance(self, done: str, texts: int) -> None:
        """``texts`` completions were scored; ``done`` says how far the phase is."""
        self._bar.update(self._task, advance=texts, done=done)
