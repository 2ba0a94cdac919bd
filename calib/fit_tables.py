"""A fit as tables on a console."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from ..runtime.schedule_text import format_schedule

if TYPE_CHECKING:
    from rich.console import Console

    from .fit import Candidate, Fit
    from .fit_loss import LossDifference

_FRONT_HEADINGS = ("layers\nrun", "nats\na token", "over full\n± error", "predicted", "expected")
_STUDY_HEADINGS = ("layers\nrun", "nats\na token", "over best\n± error", "expected\nspeed-up")


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
    table = Table(title="Pareto front and full depth; speed-ups of the steps after the prompt")
    table.add_column("schedule", no_wrap=True)
    for heading in _FRONT_HEADINGS:
        table.add_column(heading, justify="right")
    rows = fit.front if fit.full in fit.front else (fit.full, *fit.front)
    for candidate in rows:
        style = "bold" if candidate.schedule == fit.chosen.schedule else ""
        table.add_row(*_cells(candidate), style=style)
    return table


def _cells(candidate: Candidate) -> list[str]:
    return [
        format_schedule(candidate.schedule),
        f"{candidate.average_budget:.2f}",
        f"{candidate.loss:.4f}",
        _signed(candidate.over_full),
        f"{candidate.predicted:.3f}×",
        f"{candidate.expected:.3f}×",
    ]


def _print_choice(console: Console, fit: Fit) -> None:
    chosen, measured = fit.chosen, fit.measured
    speed = f"predicted {chosen.predicted:.3f}×, expected {chosen.expected:.3f}×"
    if measured is not None:
        speed += f", measured {measured.steps:.3f}× (whole call {measured.call:.3f}×)"
    console.print(f"chosen: {format_schedule(chosen.schedule)}")
    console.print(
        f"loss {chosen.loss:.4f} nats a token, {_signed(chosen.over_full)} over full; {speed}"
    )
    for entry in fit.rejected:
        console.print(
            f"passed over, measured at {entry.steps:.3f}×: {format_schedule(entry.schedule)}"
        )


def _study(fit: Fit) -> Table:
    table = Table(title="Each varied alone; * is the chosen schedule")
    table.add_column("varied")
    table.add_column("value")
    for heading in _STUDY_HEADINGS:
        table.add_column(heading, justify="right")
    before = ""
    for row in fit.sensitivity:
        varied = row.variation.varied
        table.add_row(
            varied if varied != before else "",
            row.variation.value + " *" * row.is_best,
            f"{row.average_budget:.2f}",
            f"{row.loss:.4f}",
            _signed(row.difference),
            f"{row.speedup:.3f}×",
        )
        before = varied
    return table


def _signed(difference: LossDifference) -> str:
    return f"{difference.value:+.4f} ± {difference.standard_error:.4f}"
