"""Report of a fit: a JSON document, tables on a console, and a plot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engines.errors import counted
from ...engines.host.console import Part, Table
from ...engines.host.installation import own_version
from ...engines.host.processor import processor_name
from ...runtime.schedule.text import format_schedule
from ..pictures import Chart, Series, plot
from .fitting import Candidate, Fit, NearMiss
from .search import LossDifference
from .speed import MeasuredSpeedup

if TYPE_CHECKING:
    from .speed import Speedups

_HEADINGS = ("layers\nrun", "nats\nper token", "over full\n± error")
_SPEED_HEADINGS: Mapping[bool, tuple[str, str]] = {  # True: of rows in flight
    False: ("speed-up\nexpected", "of steps\nalone"),
    True: ("steps of\n{} rows", "with\nprompts"),
}


def report_document(fit: Fit, machine: dict[str, Any]) -> dict[str, Any]:
    """Return everything as one object for `json_text`.

    ``machine`` holds the caller's facts about the machine, e.g. the number of threads. Losses are
    in nats per token. Speed-ups are those of whole calls, prompts included, and null if nothing was
    timed; ``decode`` speed-ups are those of the steps after the prompt. If ``slots`` is not null,
    both apply to that many rows in flight.
    """
    inputs, manifest = fit.inputs, fit.bundle.manifest
    return {
        "skipdec": own_version(),
        "processor": processor_name(),
        **machine,
        "model": manifest.model.name,
        "digest": manifest.digest,
        "precision": manifest.precision,
        "config": fit.config,
        "prompt_template": inputs.data.template.text,
        "num_rows": len(inputs.data.examples),
        "num_examples": len(inputs.examples),
        "num_truncated": inputs.data.num_truncated,
        "num_cut": inputs.data.num_cut,
        "num_dropped": inputs.data.num_dropped,
        "horizon": inputs.horizon,
        "median_completion": inputs.data.median_completion,
        "longest_completion": inputs.longest_completion,
        "prompt_tokens": len(inputs.prompt),
        "generated_tokens": inputs.num_tokens,
        "num_scored": fit.search.num_scored,
        "is_exhaustive": fit.search.is_exhaustive,
        "round_sizes": fit.search.round_sizes,
        "fixed_time": fit.speed.fixed,
        "fixed_prompt_time": fit.speed.prompt_fixed,
        "prompt_share": fit.speed.prompt_share,
        "full": _with_text(fit.full),
        "chosen": _with_text(fit.chosen),
        "measured": fit.measured and _with_text(fit.measured),
        "rejected": [_with_text(entry) for entry in fit.rejected],
        "near_miss": fit.near_miss and _with_text(fit.near_miss),
        "front": [_with_text(entry) for entry in fit.front],
        "others": [_with_text(entry) for entry in fit.others],
    }


def _with_text(entry: Candidate | MeasuredSpeedup | NearMiss) -> dict[str, Any]:
    """Return the fields of ``entry`` with its schedule as text."""
    return {**vars(entry), "schedule": format_schedule(entry.schedule)}


def fit_parts(fit: Fit) -> Iterator[Part]:
    """Yield the front and the chosen schedule."""
    inputs, search = fit.inputs, fit.search
    origin = "requested" if fit.config.horizon else "median completion"
    rounds = ", ".join(f"{count} on {examples}" for count, examples in search.round_sizes)
    whole = "the whole space" if search.is_exhaustive else "from a larger space"
    yield (
        f"{len(inputs.examples)} of {counted(len(inputs.data.examples), 'example')}, horizon "
        f"{inputs.horizon} ({origin}; longest {inputs.longest_completion}), prompt of "
        f"{counted(len(inputs.prompt), 'token')}\n{counted(search.num_scored, 'schedule')} scored, "
        f"{whole}: candidates on examples {rounds}"
    )
    yield _front(fit)
    yield from _choice(fit)


def _front(fit: Fit) -> Table:
    candidates = fit.front if fit.full in fit.front else (fit.full, *fit.front)
    rows = [
        (
            format_schedule(candidate.schedule),
            f"{candidate.average_budget:.2f}",
            f"{candidate.loss:.4f}",
            _signed(candidate.over_full),
            *_factors(fit, candidate.expected),
        )
        for candidate in candidates
    ]
    chosen = [
        index
        for index, candidate in enumerate(candidates)
        if candidate.schedule == fit.chosen.schedule
    ]
    headings = ("schedule", *_headings(fit))
    return Table(headings, rows, "Pareto front and full depth", chosen)


def _choice(fit: Fit) -> Iterator[Part]:
    chosen, measured, of = fit.chosen, fit.measured, fit.config.speedup_of
    yield f"chosen: {format_schedule(chosen.schedule)}"
    yield f"loss {chosen.loss:.4f} nats per token,  {_signed(chosen.over_full)} over full"
    speed = f"speed-up of {fit.config.speedup_name}: expected {chosen.expected.of(of):.3f}×"
    if measured is not None:
        other = f"whole call {measured.call}" if of != "call" else f"steps alone {measured.steps}"
        speed += f", measured {measured.ratio(of)} ({other})"
    yield f"{speed}; full depth's steps read {chosen.predicted.steps:.2f} times the bytes"
    if measured is not None and (reason := measured.ratio(of).disturbed):
        yield f"other work disturbed the timing; fit again on an idle machine: {reason}"
    for entry in fit.rejected:
        ratio = entry.ratio(of)
        came = "disturbed" if ratio.disturbed else f"measured at {ratio.value:.3f}×"
        yield f"rejected, {came}: {format_schedule(entry.schedule)}"
    if (missed := fit.near_miss) is not None:
        yield (
            f"just below the target, {missed.speedup:.3f}× at a loss of {missed.loss:.4f}: "
            f"{format_schedule(missed.schedule)}"
        )


def _headings(fit: Fit) -> list[str]:
    speeds = _SPEED_HEADINGS[fit.config.speedup_of == "mixed"]
    return [
        *_HEADINGS,
        *(heading.format(fit.config.rows) for heading in speeds),
    ]


def _factors(fit: Fit, speedups: Speedups) -> tuple[str, str]:
    """Return both speed-ups in the order of ``_SPEED_HEADINGS``."""
    call = "not timed" if speedups.call is None else f"{speedups.call:.3f}×"
    steps = f"{speedups.steps:.3f}×"
    return (steps, call) if fit.config.speedup_of == "mixed" else (call, steps)


def _signed(difference: LossDifference) -> str:
    error = difference.standard_error
    return f"{difference.value:+.4f}" + ("" if math.isnan(error) else f" ± {error:.4f}")


def plot_fit(fit: Fit, path: Path) -> None:
    """Plot every candidate that was scored on all examples, with the front as a line.

    Error bars are one standard error of the difference to full depth.
    """
    of = fit.config.speedup_of

    def points(entries: Sequence[Candidate]) -> list[float]:
        return [entry.expected.of(of) for entry in entries]

    def losses(entries: Sequence[Candidate]) -> list[float]:
        return [entry.loss for entry in entries]

    errors = [(entry.loss, entry.over_full.standard_error) for entry in fit.front]
    bars = [(loss, loss - error, loss + error) for loss, error in errors]
    series = [
        Series("beaten", points(fit.others), losses(fit.others), "."),
        Series("Pareto front", points(fit.front), bars),
        Series("full depth", points([fit.full]), losses([fit.full]), "s"),
        Series("chosen", points([fit.chosen]), losses([fit.chosen]), "*"),
    ]
    xlabel = f"speed-up of {fit.config.speedup_name}, expected"
    plot(path, Chart(series, xlabel, "nats per token"))
