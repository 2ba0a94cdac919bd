"""Loss by position, as Markdown tables for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from .bootstrap import Estimate
from .evaluation import Evaluation, Row
from .markdown import escaped, interval, table
from .positions import PositionFigure, PositionProfile


def positions_markdown(evaluation: Evaluation) -> str:
    """Return, for each bundle, perplexity by position and the loss over full depth."""
    groups = groupby(evaluation.rows, key=lambda row: row.prepared.choice)
    return "\n\n".join(_bundle_tables(list(rows)) for _, rows in groups)


def _bundle_tables(rows: Sequence[Row]) -> str:
    profiles = [(row, row.positions) for row in rows if row.positions is not None]
    figures = profiles[0][1].figures
    names = [figure.name for figure in figures]
    counts = ["tokens", *(f"{figure.num_tokens:,}" for figure in figures)]
    perplexities = table(
        ["schedule", *names],
        [counts, *_cells(profiles, lambda figure: figure.perplexity, digits=2)],
    )
    label = escaped(rows[0].label)
    parts = [f"Perplexity of {label} by position of the completion's token:\n\n{perplexities}"]
    skipping = [(row, profile) for row, profile in profiles if not row.run.schedule.is_full]
    if skipping:
        parts.append(
            "Loss over full depth by position, nats a token, paired by prompt; the last column: "
            f"the last positions minus the first after 0, below 0 where skipping costs less later:"
            f"\n\n{_excess_table(names, skipping)}"
        )
    return "\n\n".join(parts)


def _excess_table(names: Sequence[str], profiles: Sequence[tuple[Row, PositionProfile]]) -> str:
    cells = _cells(profiles, lambda figure: figure.loss_over_full, digits=3, signed=True)
    changes = (profile.late_minus_early for _, profile in profiles)
    return table(
        ["schedule", *names, "late − early"],
        [
            [*row, "–" if change is None else _estimate(change, 3, signed=True)]
            for row, change in zip(cells, changes, strict=True)
        ],
    )


def _cells(
    profiles: Sequence[tuple[Row, PositionProfile]],
    choose: Callable[[PositionFigure], Estimate],
    *,
    digits: int,
    signed: bool = False,
) -> list[list[str]]:
    return [
        [
            escaped(row.run.name),
            *(_estimate(choose(figure), digits, signed=signed) for figure in profile.figures),
        ]
        for row, profile in profiles
    ]


def _estimate(estimate: Estimate, digits: int, *, signed: bool = False) -> str:
    return interval(estimate.value, estimate.low, estimate.high, digits, signed=signed)
