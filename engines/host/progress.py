"""ConsoleProgress: a command's progress on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from threading import RLock
from time import monotonic
from typing import Any, Self, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from ..errors import SkipDecError
from .console import Part, print_report, reporting, stderr_console
from .events import Events

Report = TypeVar("Report")


class ConsoleProgress(Events):
    """Progress bars for the stage and each part on a terminal, else occasional lines.

    Both show how much is done, of how much, and the time left.

    ``quiet`` leaves only warnings and, after Ctrl-C, the result of ``advice``: how to continue.
    ``verbose`` adds a line for each item. Without a terminal, events print a line at most every
    ``seconds_between_lines``, notes at once. A context manager, which removes the bars at its end.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        verbose: bool = False,
        advice: Callable[[], str] | None = None,
        console: Console | None = None,
        seconds_between_lines: float = 5.0,
    ) -> None:
        self._console = console or stderr_console()
        self._quiet = quiet
        self._verbose = verbose
        self._advice = advice
        self._seconds_between_lines = seconds_between_lines
        self._bars = Progress(
            TextColumn("{task.description:<14}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[item]}", markup=False),
            console=self._console,
            transient=True,
            speed_estimate_period=3600.0,  # a step may take minutes
            disable=quiet or not self._console.is_terminal,
        )
        self._stage = self._bars.add_task("checking", total=None, item="")
        self._parts: dict[str, TaskID] = {}
        self._lock = RLock()
        self._last_line = monotonic()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        """Remove the bars; after Ctrl-C, print how to continue."""
        self._bars.stop()
        if self._advice is not None and isinstance(error, KeyboardInterrupt):
            self._print(Text(self._advice()))

    def planned(self, summary: str, warnings: Sequence[str] = ()) -> None:
        """Print the warnings, then the summary, if any."""
        for warning in warnings:
            self.warn(warning)
        if summary:
            self.note(summary)

    def warn(self, text: str) -> None:
        """Print a warning, even if quiet."""
        self._print(Text.assemble(("warning:", "yellow"), " ", text))

    def stage(self, name: str, total: int | None = None) -> None:
        """Replace the bar by a new one."""
        with self._lock:
            for task in (self._stage, *self._parts.values()):
                self._bars.remove_task(task)
            self._parts.clear()
            self._stage = self._bars.add_task(name, total=total, item="")
        self._say_at_times()

    def advance(self, item: str = "", steps: int = 1, *, detail: str = "") -> None:
        """Advance the bar, remove those of the item's parts, and print a line if due."""
        with self._lock:
            self._bars.advance(self._stage, steps)
            if item:
                self._bars.update(self._stage, item=item)
            for part in [name for name in self._parts if name.split(".")[0] == item]:
                self._bars.remove_task(self._parts.pop(part))
        if detail:
            self.note(f"  {item:<10} {detail}")
        elif self._verbose and item:
            self.note(f"  {item}")
        else:
            self._say_at_times(item)

    def part(self, name: str, phase: str, step: int, total: int) -> None:
        """Show a bar of its own for the part."""
        with self._lock:
            if name not in self._parts:
                self._parts[name] = self._bars.add_task(name, item=phase)
            self._bars.update(self._parts[name], completed=step, total=total, item=phase)
        self._say_at_times(f"{name} {phase} {step}/{total}")

    def status(self, text: str) -> None:
        """Show the text beside the bar, or as a line where there is no bar."""
        self._bars.update(self._stage, item=text)
        if not self._console.is_terminal:
            self.note(text)

    def note(self, text: str) -> None:
        """Print a line unless quiet."""
        if not self._quiet:
            self._print(Text(text))

    def _say_at_times(self, what: str = "") -> None:
        """Print a line with the stage's count if there is no bar and the last line is old."""
        is_due = monotonic() - self._last_line >= self._seconds_between_lines
        if self._console.is_terminal or not is_due:
            return
        with self._lock:
            stage = next(task for task in self._bars.tasks if task.id == self._stage)
            count = f"{stage.completed:.0f}" if stage.completed else ""
            if stage.total is not None:
                count = f"{stage.completed:.0f}/{stage.total:.0f}"
            if stage.time_remaining:
                count += f" ({timedelta(seconds=round(stage.time_remaining))} left)"
        self.note(" ".join(filter(None, (stage.description, count, what))))

    def _print(self, text: Text) -> None:
        self._last_line = monotonic()
        self._console.print(text, soft_wrap=True)


def run_job(
    run: Callable[[Events], Report | None],
    parts: Callable[[Report], Iterable[Part]],
    *,
    done: Callable[[Report], str],
    write: Callable[[Report, Events], None] | None = None,
    document: Callable[[Report], Any] = lambda report: report,
    as_json: bool,
    quiet: bool,
    verbose: bool = False,
    advice: Callable[[], str] | None = None,
) -> Report | None:
    """Run a command's job with progress on stderr, print its report on stdout, and return it.

    ``done`` says what is true even if stdout can't take the report: "model.skipdec is published".
    ``document`` is what ``as_json`` prints. A report of None is printed by another process.
    ``write`` saves the report; if it raises OSError or SkipDecError, the report is printed all the
    same, so that a full disk costs no work. The other parameters are those of `ConsoleProgress` and
    `print_report`.
    """
    failure: OSError | SkipDecError | None = None
    with ConsoleProgress(quiet=quiet, verbose=verbose, advice=advice) as progress:
        report = run(progress)
        if write is not None and report is not None:
            try:
                write(report, progress)
            except (OSError, SkipDecError) as error:
                failure = error
    if report is not None:
        with reporting(done(report) if failure is None else "the result is not saved"):
            print_report(document(report), parts(report), as_json=as_json)
    if failure is not None:
        raise failure
    return report
