"""What ``skipdec export`` and ``skipdec build`` show on stderr while they work."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from ..pipeline.report import EngineReport, ExportEvents, Stage

_TITLES: dict[Stage, str] = {
    "check": "checking",
    "trace": "tracing",
    "build": "building",
    "verify": "verifying",
    "publish": "publishing",
}


class ExportProgress(ExportEvents):
    """One line per finished stage and engine, and bars below them where stderr is a terminal.

    One bar is the stage's; TensorRT's plans have one each while they are built.

    ``quiet`` leaves only warnings; ``verbose`` adds a line per traced graph and verified engine.
    """

    def __init__(self, console: Console, *, verbose: bool, quiet: bool) -> None:
        self._console = console
        self._verbose = verbose
        self._quiet = quiet
        self._bar = Progress(
            TextColumn("{task.description:<14}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[item]}"),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None, item="")
        self._plans: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Take the bar away; after Ctrl-C, say that nothing is lost."""
        self._bar.stop()
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self._console.print("run the same command again to go on from here")

    def warning(self, text: str) -> None:
        """Show a warning, quiet or not."""
        self._console.print(f"[yellow]warning:[/yellow] {text}", soft_wrap=True)

    def stage_started(self, stage: Stage, items: int) -> None:
        """Start the bar anew."""
        self._bar.reset(self._task, total=items, description=_TITLES[stage], item="")

    def item_finished(self, stage: Stage, item: str) -> None:
        """Advance the bar."""
        self._bar.update(self._task, advance=1, item=item)
        if self._verbose:
            self._line(f"  {item}")

    def plan_progress(self, plan: str, phase: str, step: int, steps: int) -> None:
        """Show how far the builder is in its current phase."""
        if plan not in self._plans:
            self._plans[plan] = self._bar.add_task(plan, item=phase)
        self._bar.update(self._plans[plan], completed=step, total=steps, item=phase)

    def engine_finished(self, engine: EngineReport) -> None:
        """Advance the bar, take away those of the engine's plans, and leave a line."""
        for plan in engine.plans:
            if plan.engine in self._plans:
                self._bar.remove_task(self._plans.pop(plan.engine))
        self._bar.update(self._task, advance=1, item=engine.name)
        how = "as it was left" if engine.resumed else f"{engine.seconds:7.2f} s"
        self._line(f"  {engine.name:<10} {engine.size / 1e6:10,.1f} MB {how}")

    def stage_finished(self, stage: Stage, seconds: float) -> None:
        """Leave a line."""
        self._line(f"{_TITLES[stage]:<12} {seconds:23.2f} s")

    def _line(self, text: str) -> None:
        if not self._quiet:
            self._console.print(text)
