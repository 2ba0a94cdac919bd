"""Compare the bootstrap with known intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from evaluations import outcome
from sacrebleu import corpus_bleu

from skipdec.calib.evaluation.bootstrap import Bootstrap
from skipdec.calib.evaluation.metrics import OUTPUT_TOKENS, REALISED_DEPTH, Bleu, Outcome


def outcomes(lengths: Sequence[int], text: str = "a b c d") -> list[Outcome]:
    return [
        outcome(
            text,
            token_ids=range(length),
            layers_per_token=(6,) * length,
            references=("a b c d",),
        )
        for length in lengths
    ]


def test_equal_examples_give_an_interval_of_zero_width() -> None:
    sample = Bootstrap(20, resamples=50, seed=0).sample(OUTPUT_TOKENS, outcomes([7] * 20))
    estimate = sample.estimate(0.95)
    assert (estimate.value, estimate.low, estimate.high) == (7, 7, 7)


@pytest.mark.parametrize(("confidence", "deviations"), [(0.95, 1.96), (0.68, 0.994)])
def test_the_interval_of_a_mean_spans_its_standard_errors(
    confidence: float, deviations: float
) -> None:
    lengths = [0, 10] * 200  # standard error of the mean: 5 / sqrt(400)
    sample = Bootstrap(400, resamples=2000, seed=0).sample(OUTPUT_TOKENS, outcomes(lengths))
    estimate = sample.estimate(confidence)
    assert estimate.value == 5
    assert estimate.low == pytest.approx(5 - deviations * 0.25, abs=0.06)
    assert estimate.high == pytest.approx(5 + deviations * 0.25, abs=0.06)


def test_differences_are_paired_by_example() -> None:
    lengths = np.random.default_rng(1).integers(0, 100, 50).tolist()
    bootstrap = Bootstrap(50, resamples=200, seed=0)
    base = bootstrap.sample(OUTPUT_TOKENS, outcomes(lengths))
    longer = bootstrap.sample(OUTPUT_TOKENS, outcomes([length + 3 for length in lengths]))
    assert base.estimate(0.95).high - base.estimate(0.95).low > 5
    difference = (longer - base).estimate(0.95)
    assert difference.value == pytest.approx(3)
    assert (difference.low, difference.high) == pytest.approx((3, 3))


def test_equal_seeds_give_equal_intervals() -> None:
    rows = outcomes([1, 2, 4, 8, 16])
    first, again, other = (
        Bootstrap(5, resamples=30, seed=seed).sample(OUTPUT_TOKENS, rows).resampled
        for seed in (3, 3, 4)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_resampled_bleu_equals_bleu_of_the_resampled_corpus() -> None:
    rows = [*outcomes([1], "a b c d"), *outcomes([1], "a b c x"), *outcomes([1], "a y c d e")]
    resampled = Bootstrap(3, resamples=20, seed=5).sample(Bleu(), rows).resampled
    draws = np.random.default_rng(5)
    for actual in resampled:
        drawn = [rows[index] for index in draws.integers(0, 3, 3)]
        expected = corpus_bleu([row.text for row in drawn], [["a b c d"] * 3]).score
        assert actual == pytest.approx(expected)


def test_undefined_metrics_have_no_interval() -> None:
    estimate = Bootstrap(2, resamples=9, seed=0).sample(REALISED_DEPTH, outcomes([1, 1]))
    assert all(map(math.isnan, vars(estimate.estimate(0.95)).values()))


def test_a_single_example_has_no_interval() -> None:
    estimate = Bootstrap(1, resamples=9, seed=0).sample(OUTPUT_TOKENS, outcomes([7])).estimate(0.95)
    assert estimate.value == 7
    assert math.isnan(estimate.low)
    assert math.isnan(estimate.high)
