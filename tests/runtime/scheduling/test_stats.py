"""Figures of a running batch are histograms and the cost of rows at different depths."""

from __future__ import annotations

import pytest

from skipdec.runtime.schedule import LayerPlan
from skipdec.runtime.scheduling.stats import Counters, Distribution, Histogram


def test_a_value_counts_in_the_first_bucket_that_holds_it() -> None:
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
def test_mixing_loss_compares_depths_within_a_step(steps: list[list[int]], loss: float) -> None:
    counters = Counters.zero(8)
    for depths in steps:
        counters.count_step([LayerPlan(tuple(range(depth))) for depth in depths], 0.1)
    present = dict.fromkeys(
        ("requests", "running", "waiting", "reserved_bytes", "prefix_bytes", "limit_bytes"), 0
    )
    assert counters.snapshot(**present).mixing_loss == pytest.approx(loss)
