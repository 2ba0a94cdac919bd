"""Percentiles and clips of known values."""

from __future__ import annotations

import numpy as np
import pytest

from skipdec.calib.calibration.products import RANGE_METHODS, MagnitudeHistogram


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


def test_zeros_and_both_signs_count() -> None:
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


def int8_error(values: np.ndarray, clip: float) -> float:
    scale = clip / 127
    return float(np.mean((np.clip(np.rint(values / scale), -127, 127) * scale - values) ** 2))


@pytest.mark.parametrize("outlier", [None, 40.0, 400.0])
def test_the_clip_has_nearly_the_smallest_int8_error(outlier: float | None) -> None:
    values = np.random.default_rng(1).normal(size=50_000)
    if outlier is not None:
        values = np.append(values, outlier)
    clip = histogram_of(values).int8_clip()
    clips = np.abs(values).max() * 2 ** -np.linspace(0, 8, 400)
    best = min(int8_error(values, each) for each in clips)
    assert int8_error(values, clip) < 1.05 * best
    if outlier == 40.0:
        assert clip < 35


def test_methods_by_name() -> None:
    histogram = histogram_of(np.arange(1.0, 10_001))
    ranges = {name: choose(histogram, 99.9) for name, choose in RANGE_METHODS.items()}
    assert ranges["max"] == 10_000
    assert ranges["percentile"] == pytest.approx(9990, rel=1e-3)
    assert ranges["mse"] == pytest.approx(10_000, rel=0.1)
