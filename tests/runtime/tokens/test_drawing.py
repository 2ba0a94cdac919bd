"""Kernels and numpy draw the same tokens from the same random numbers, and similar rows too."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from skipdec.engines.kernels.library import INSTRUCTION_SET_VARIABLE, find_library
from skipdec.runtime.tokens.drawing import NumpyDrawer, drawer_of, exponentials, weights_of
from skipdec.runtime.tokens.sampling import SamplingParams

LIBRARY = find_library()
needs_kernels = pytest.mark.skipif(LIBRARY is None, reason="skipdec's kernels are not compiled")
INSTRUCTION_SETS = () if LIBRARY is None else LIBRARY.instruction_sets


def random_logits(seed: int, size: int) -> NDArray[np.float32]:
    """Return logits, some rounded to produce ties, some masked."""
    random = np.random.default_rng(seed)
    logits = (random.standard_normal(size) * random.choice((0.1, 2.0, 6.0))).astype(np.float32)
    if seed % 3 == 0:
        logits = np.round(logits, 1)
    if seed % 4 == 0:
        logits[random.integers(1, size, size // 3)] = -np.inf
    return logits


@needs_kernels
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("top_p", [1.0, 0.95, 0.3])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.05},
        {"top_k": 1},
        {"top_k": 40},
        {"top_k": 900, "temperature": 3.0},
        {"top_k": 2**63 - 1},  # more than there are
        {"min_p": 0.02},
        {"min_p": 0.001, "top_k": 7, "temperature": 0.6},
    ],
)
def test_kernels_draw_what_numpy_draws(
    instruction_set: str,
    top_p: float,
    settings: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(INSTRUCTION_SET_VARIABLE, instruction_set)
    params = SamplingParams(**({"temperature": 0.8, "top_p": top_p} | settings))
    compiled, plain = drawer_of(params), NumpyDrawer(params)
    assert type(compiled) is not NumpyDrawer
    for size in (2, 16, 63, 130, 5000, 50272):
        for seed, uniform in enumerate((0.0, 0.1, 0.25, 0.5, 0.77, 0.99)):
            logits = random_logits(seed, size)
            before = logits.copy()
            token_ids = 3 * np.arange(size) + 1 if seed % 2 else None
            drawn = compiled.draw(logits, uniform, token_ids)
            expected = plain.draw(logits, uniform, token_ids)
            assert drawn == expected, f"{size} logits, seed {seed}"
            assert (logits == before).all(), f"{size} logits, seed {seed}"


@needs_kernels
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_flushing_subnormal_numbers_does_not_change_draws(
    instruction_set: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setenv(INSTRUCTION_SET_VARIABLE, instruction_set)
    drawer = drawer_of(SamplingParams(min_p=1.0))  # keeps only the largest
    logits = np.array([0, 1e-39] * 20, np.float32)
    assert torch.set_flush_denormal(True)
    try:
        drawn = drawer.draw(logits, 0.0)
    finally:
        torch.set_flush_denormal(False)
    assert drawn is not None
    assert drawn % 2 == 1


@pytest.mark.parametrize("make", [NumpyDrawer, drawer_of])
@pytest.mark.parametrize("settings", [{}, {"top_k": 9}, {"min_p": 0.1}, {"top_p": 0.8}])
def test_some_tokens_logits_draw_what_a_whole_row_without_the_others_draws(
    make: type[NumpyDrawer], settings: dict[str, float]
) -> None:
    random = np.random.default_rng(5)
    token_ids = np.sort(random.choice(3000, 300, replace=False))
    drawer = make(SamplingParams(**settings))
    for uniform in random.random(50):
        row = np.full(3000, -np.inf, np.float32)
        row[token_ids] = random.standard_normal(300, np.float32)
        index = drawer.draw(row[token_ids], uniform, token_ids)
        assert index is not None
        assert token_ids[index] == drawer.draw(row, uniform)


@pytest.mark.parametrize("scale", [0.2, 1.0, 3.0])
def test_similar_rows_draw_the_same_token_as_often_as_their_distance_allows(scale: float) -> None:
    random = np.random.default_rng(6)
    drawer, equal, bound = NumpyDrawer(SamplingParams()), 0, 0.0
    for uniform in random.random(3000):
        first = (2 * random.standard_normal(200)).astype(np.float32)
        second = (first + scale * random.standard_normal(200)).astype(np.float32)
        shares = [weights / weights.sum() for weights in (np.exp(first), np.exp(second))]
        distance = float(np.abs(shares[0] - shares[1]).sum()) / 2
        bound += (1 - distance) / (1 + distance)
        equal += drawer.draw(first, uniform) == drawer.draw(second, uniform)
    assert equal > bound - 3 * np.sqrt(3000) / 2  # three standard deviations


def test_exponentials_are_independent_and_exponentially_distributed() -> None:
    by_key = np.array(
        [exponentials(np.arange(400), u) for u in np.random.default_rng(7).random(500)]
    )
    shares = -np.expm1(-by_key.astype(np.float64))  # uniform in [0, 1) [500, 400]
    assert shares.min() > 0
    deviation = 1 / np.sqrt(12 * shares.size)
    assert abs(shares.mean() - 0.5) < 3 * deviation
    counts = np.histogram(shares, 100, (0, 1))[0]
    statistic = ((counts - shares.size / 100) ** 2).sum() / (shares.size / 100)
    assert statistic < 148.2  # chi-square of 99 degrees of freedom at 0.999
    for axis in (0, 1):
        for distance in (1, 2, 64):
            others = np.roll(shares, distance, axis)
            correlation = ((shares - 0.5) * (others - 0.5)).mean() * 12
            assert abs(correlation) < 3.5 / np.sqrt(shares.size), f"{axis}, {distance}"


@pytest.mark.parametrize("settings", [{}, {"top_k": 3}, {"min_p": 0.5}, {"top_p": 0.5}])
def test_nan_logits_draw_nothing(settings: dict[str, float]) -> None:
    params = SamplingParams(**settings)
    for drawer in (NumpyDrawer(params), drawer_of(params)):
        for value, index in product((np.nan, np.inf), (0, 15, 16, 69)):
            logits = np.zeros(70, np.float32)
            logits[index] = value
            assert drawer.draw(logits, 0.5) is None, f"{drawer}, {value} at {index}"


@pytest.mark.parametrize("make", [NumpyDrawer, drawer_of])
def test_fully_masked_logits_draw_nothing(make: type[NumpyDrawer]) -> None:
    assert make(SamplingParams()).draw(np.full(40, -np.inf, np.float32), 0.5) is None


@given(st.lists(st.floats(-100, 0, width=32), min_size=1))
def test_weights_are_exponentials_within_two_units_in_the_last_place(
    exponents: list[float],
) -> None:
    values = np.array(exponents, np.float32)
    expected = np.exp(values.astype(np.float64))
    expected[values < np.float32(-87.3)] = 0
    assert np.abs(weights_of(values) - expected).max() <= 2 * np.spacing(np.float32(1))
    np.testing.assert_allclose(weights_of(values), expected, rtol=2.4e-7)


@needs_kernels
def test_logits_that_are_not_contiguous_are_refused() -> None:
    with pytest.raises(ValueError, match="logits"):
        drawer_of(SamplingParams()).draw(np.zeros((4, 2), np.float32)[:, 0], 0.5)
    with pytest.raises(ValueError, match="token_ids"):
        drawer_of(SamplingParams()).draw(np.zeros(4, np.float32), 0.5, np.arange(8)[::2])
