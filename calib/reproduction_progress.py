"""What a reproduction shows on stderr: a line for each model."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from .reproduction import ReproductionEvents
from .reproduction_evaluation import CellResult
from .reproduction_runs import Run


class ReproductionLines(ReproductionEvents):
    """Prints how many models are to come, then each as it is made and evaluated."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def planned(self, runs: Sequence[Run], *, missing: int) -> None:
        """How much is left to do."""
        self._line(f"{len(runs)} models, {missing} of them to make")

    def made(self, run: Run, seconds: float) -> None:
        """One more is there."""
        self._line(f"seed {run.seed}, {run.name}: tuned and exported in {seconds:.0f} s")

    def evaluated(self, run: Run, results: Sequence[CellResult]) -> None:
        """The quality and speed of each cell."""
        for result in results:
            figures = result.figures
            self._line(
                f"seed {result.seed}, {result.column} {result.speedup}x: "
                f"BLEU {figures['bleu']:.1f}, {figures['realised_depth']:.2f} layers, "
                f"{result.measured_speedup:.2f} times as fast"
            )

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)
