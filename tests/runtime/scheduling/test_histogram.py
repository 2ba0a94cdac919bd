"""Histograms: a value at a bound belongs below it, one above all bounds to the last count."""

from __future__ import annotations

from skipdec.runtime.scheduling.stats import Distribution, Histogram


def test_values_are_counted_by_the_first_bound_that_holds_them() -> None:
    histogram = Histogram([1, 2, 4])
    empty = histogram.snapshot()
    for value in (0.5, 1, 1.5, 4, 9):
        histogram.observe(value)
    assert empty == Distribution((1, 2, 4), (0, 0, 0, 0), 0.0)
    assert histogram.snapshot() == Distribution((1, 2, 4), (2, 1, 1, 1), 16.0)
