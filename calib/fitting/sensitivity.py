"""Vary each choice of a schedule alone to measure its effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...engines.errors import ScheduleError
from ...runtime.schedule import ExitSchedule
from ...runtime.schedule.rule import PROMPT_DEPTHS
from .loss import LossDifference, ScoredSchedule, loss_difference
from .speed import Speedups

_WARMUPS = range(5)
_SHAPES: tuple[Mapping[str, object], ...] = (
    {"decay": "linear"},
    {"decay": "cosine"},
    {"decay": "power", "power": 0.5},
    {"decay": "power", "power": 2},
    {"decay": "exponential", "rate": 3},
    {"decay": "step", "steps": 2},
)

_Change = tuple[str, str, Mapping[str, object]]  # the varied choice, its value, the fields


@dataclass(frozen=True)
class Variation:
    """A schedule that differs from the best in one choice."""

    varied: str  # warm-up, decay, horizon, prompt
    value: str
    schedule: ExitSchedule


@dataclass(frozen=True)
class SensitivityRow:
    """Loss and speed of a variation on all examples."""

    variation: Variation
    is_best: bool  # True for the best schedule itself
    loss: float  # nats per token
    difference: LossDifference  # from the best schedule, paired by example
    speedups: Speedups  # expected
    average_budget: float  # mean layers per generated token, over the same number of tokens for all


def variations(best: ExitSchedule, horizons: Mapping[str, int]) -> list[Variation]:
    """Return all variations of ``best``; ``horizons`` by name, e.g. median and maximum.

    Decay and horizon have no effect if max and min are equal, so they are left out there, like
    warm-ups and prompt rules that the placement does not support. A choice with a single value is
    not varied.
    """
    wanted: list[_Change] = [
        ("warm-up", str(count), {"warmup_layers": count}) for count in _WARMUPS
    ]
    if best.max_exit_layer > best.min_exit_layer:
        wanted += [("decay", _shape_name(shape), shape) for shape in _SHAPES]
        wanted += [
            ("horizon", f"{value}, {name}", {"horizon": value}) for name, value in horizons.items()
        ]
    wanted += [("prompt", depth, {"prompt": depth}) for depth in PROMPT_DEPTHS]
    fitting = list(_fitting(best, wanted))
    varied = {variation.varied for variation in fitting if variation.schedule != best}
    return [variation for variation in fitting if variation.varied in varied]


def study(
    best: ScoredSchedule,
    horizons: Mapping[str, int],
    score: Callable[[ExitSchedule], ScoredSchedule],
    expected: Callable[[ExitSchedule], Speedups],
    num_tokens: int,
) -> tuple[SensitivityRow, ...]:
    """Score every variation of ``best`` on all examples; ``num_tokens`` sets the mean depth."""
    rows = []
    for variation in variations(best.schedule, horizons):
        is_best = variation.schedule == best.schedule
        scored = best if is_best else score(variation.schedule)
        rows.append(
            SensitivityRow(
                variation=variation,
                is_best=is_best,
                loss=scored.mean_loss,
                difference=loss_difference(scored, best),
                speedups=expected(scored.schedule),
                average_budget=scored.schedule.average_budget(num_tokens),
            )
        )
    return tuple(rows)


def _fitting(best: ExitSchedule, wanted: Sequence[_Change]) -> Iterator[Variation]:
    for varied, value, changes in wanted:
        try:
            yield Variation(varied, value, best.changed(**changes))
        except ScheduleError:
            continue  # not supported by this placement


def _shape_name(shape: Mapping[str, object]) -> str:
    options = ",".join(f"{key}={value}" for key, value in shape.items() if key != "decay")
    return f"{shape['decay']}:{options}".rstrip(":")
