"""A fit as tables on a console."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from ..runtime.schedule.text import format_schedule

if TYPE_CHECKING:
    from rich.console import Console

    from .fit import Fit
    from .fit_loss import LossDifference
    from .fit_speed import Speedups

_HEADINGS = (
    "layers\nrun",
    "nats\na token",
    "over {}\n± error",
    "steps\nexpected",
    "call\nexpected",
)


def print_fit(console: Console, fit: Fit) -> None:
    """Print the front, the chosen schedule, and the sensitivity study if there is one."""
    _print_facts(console, fit)
    console.print(_front(fit))
    _print_choice(console, fit)
    if fit.sensitivity:
        console.print(_study(fit))


def _print_facts(console: Console, fit: Fit) -> None:
    inputs, search = fit.inputs, fit.search
    origin = "asked for" if fit.config.horizon else "median completion"
    rounds = ", ".join(f"{count} on {examples}" for count, examples in search.round_sizes)
    whole = "all of the space" if search.is_exhaustive else "of a larger space"
    console.print(
        f"{len(inputs.examples)} of {len(inputs.data.examples)} examples, horizon "
        f"{inputs.horizon} ({origin}; longest {inputs.longest_completion}), prompt of "
        f"{len(inputs.prompt)} tokens\n{search.num_scored} schedules scored, {whole}: "
        f"candidates on examples {rounds}"
    )


def _front(fit: Fit) -> Table:
    table = _table("Pareto front and full depth", "full", "schedule")
    rows = fit.front if fit.full in fit.front else (fit.full, *fit.front)
    for candidate in rows:
        table.add_row(
            format_schedule(candidate.schedule),
            f"{candidate.average_budget:.2f}",
            f"{candidate.loss:.4f}",
            _signed(candidate.over_full),
            *_factors(candidate.expected),
            style="bold" if candidate.schedule == fit.chosen.schedule else "",
        )
    return table


def _print_choice(console: Console, fit: Fit) -> None:
    chosen, measured, of = fit.chosen, fit.measured, fit.config.speedup_of
    speed = f"{of} predicted {chosen.predicted.of(of):.3f}×, expected {chosen.expected.of(of):.3f}×"
    if measured is not None:
        speed += f"; measured: steps {measured.steps:.3f}×, whole call {measured.call:.3f}×"
    console.print(f"chosen: {format_schedule(chosen.schedule)}")
    console.print(
        f"loss {chosen.loss:.4f} nats a token, {_signed(chosen.over_full)} over full; {speed}"
    )
    for entry in fit.rejected:
        console.print(
            f"passed over, measured at {entry.of(of):.3f}×: {format_schedule(entry.schedule)}"
        )


def _study(fit: Fit) -> Table:
    table = _table("Each varied alone; * is the chosen schedule", "chosen", "varied", "value")
    before = ""
    for row in fit.sensitivity:
        varied = row.variation.varied
        table.add_row(
            varied if varied != before else "",
            row.variation.value + " *" * row.is_best,
            f"{row.average_budget:.2f}",
            f"{row.loss:.4f}",
            _signed(row.difference),
            *_factors(row.speedups),
        )
        before = varied
    return table


def _table(title: str, reference: str, *names: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1), pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")
    for heading in _HEADINGS:
        table.add_column(heading.format(reference), justify="right", no_wrap=True)
    return table


def _factors(speedups: Speedups) -> tuple[str, str]:
    call = "not timed" if speedups.call is None else f"{speedups.call:.3f}×"
    return f"{speedups.steps:.3f}×", call


def _signed(difference: LossDifference) -> str:
    return f"{difference.value:+.4f} ± {difference.standard_error:.4f}"
