"""Compare percentiles with known values."""

from __future__ import annotations

import numpy as np
import pytest

from skipdec.calib.calibration.products import MagnitudeHistogram


def histogram_of(*parts: np.ndarray) -> MagnitudeHistogram:
    histogram = MagnitudeHistogram()
    for part in parts:
        assert histogram.add(part.astype(np.float32))
    return histogram


@pytest.mark.parametrize("percentage", [50, 90, 99.9, 99.99, 100])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 3e7])
def test_percentiles_are_exact_to_a_thousandth(percentage: float, scale: float) -> None:
    values = np.arange(-20_000, 0) * scale
    found = histogram_of(values).percentile(percentage)
    exact = np.percentile(np.abs(values.astype(np.float32)), percentage, method="inverted_cdf")
    assert exact <= found <= exact * 1.001


def test_percentiles_count_zeros_and_both_signs() -> None:
    histogram = histogram_of(np.array([0.0, -0.0, 0.0, -8.0]))
    assert (histogram.count, histogram.maximum, histogram.percentile(75)) == (4, 8.0, 0.0)
    assert histogram.percentile(76) == 8.0


def test_partial_histograms_add_up() -> None:
    values = np.random.default_rng(0).normal(size=(70, 31))
    parts = histogram_of(values[:3], values[3:])
    whole = histogram_of(values)
    for percentage in (10, 99, 99.9):
        assert parts.percentile(percentage) == whole.percentile(percentage)
    assert (parts.maximum, parts.count) == (whole.maximum, 70 * 31)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_values_are_reported(value: float) -> None:
    assert not MagnitudeHistogram().add(np.array([1.0, value], np.float32))
