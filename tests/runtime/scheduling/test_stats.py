"""Figures of a running batch: histograms, and what rows at different depths cost."""

from __future__ import annotations

import pytest

from skipdec.runtime.schedule import LayerPlan
from skipdec.runtime.scheduling.stats import Counters, Distribution, Histogram


def test_values_are_counted_by_the_first_bound_that_holds_them() -> None:
    histogram = Histogram([1, 2, 4])
    empty = histogram.snapshot()
    for value in (0.5, 1, 1.5, 4, 9):
        histogram.observe(value)
    assert empty == Distribution((1, 2, 4), (0, 0, 0, 0), 0.0)
    assert histogram.snapshot() == Distribution((1, 2, 4), (2, 1, 1, 1), 16.0)


@pytest.mark.parametrize(
    ("steps", "loss"),
    [
        ([[2], [8] * 9], 1.0),
        ([[8] * 9, [2]], 1.0),
        ([[8, 4]], 8 / 6),
        ([[8, 4], [6] * 20], (8 + 6) / (6 + 6)),
    ],
)
def test_rows_of_a_step_lose_by_their_own_depths_alone(steps: list[list[int]], loss: float) -> None:
    counters = Counters.zero(8)
    for depths in steps:
        counters.count_step([LayerPlan(tuple(range(depth))) for depth in depths], 0.1)
    present = dict.fromkeys(
        ("requests", "running", "waiting", "reserved_bytes", "prefix_bytes", "limit_bytes"), 0
    )
    assert counters.snapshot(**present).mixing_loss == pytest.approx(loss)
