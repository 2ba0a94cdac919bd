"""Bootstrap intervals: how much a metric would vary with other examples of the same kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np

from .metrics import Metric, Outcome, Statistics


@dataclass(frozen=True)
class Estimate:
    """A value with its percentile interval; the bounds are nan if no resample defines it."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class MetricSample:
    """A metric of one set of outcomes and of each resample of that set."""

    value: float
    resampled: Statistics  # float64 [resamples]

    def __sub__(self, other: MetricSample) -> MetricSample:
        """Return the difference, paired: resamples hold the same examples in both."""
        return MetricSample(self.value - other.value, self.resampled - other.resampled)

    def estimate(self, confidence: float) -> Estimate:
        """Return the value with the central ``confidence`` interval of the resampled values."""
        finite = self.resampled[np.isfinite(self.resampled)]
        if not finite.size:
            return Estimate(self.value, math.nan, math.nan)
        tail = 50 * (1 - confidence)
        low, high = np.percentile(finite, (tail, 100 - tail))
        return Estimate(self.value, float(low), float(high))


@dataclass(frozen=True)
class Bootstrap:
    """Draws ``num_examples`` examples with replacement, ``resamples`` times, from one seed.

    Every call of ``sample`` sees the same draws, so samples of two schedules are paired by
    example. (Efron's percentile bootstrap; paired for BLEU: Koehn 2004.)

    >>> bootstrap = Bootstrap(num_examples=200, resamples=1000, seed=0)
    >>> full, skipped = (bootstrap.sample(bleu, outcomes[name]) for name in ("full", "2x"))
    >>> (skipped - full).estimate(0.95)
    Estimate(value=-0.1, low=-1.2, high=0.9)
    """

    num_examples: int
    _: KW_ONLY
    resamples: int
    seed: int

    def sample(self, metric: Metric, outcomes: Sequence[Outcome]) -> MetricSample:
        """Return the metric of ``outcomes``, which holds one outcome per example, in order.

        A single example says nothing about others: its resamples are nan.
        """
        assert len(outcomes) == self.num_examples, "one outcome per example"
        statistics = metric.statistics(outcomes)  # [n, k]
        value = metric.value(statistics.sum(axis=0))
        if self.num_examples < 2:
            return MetricSample(value, np.full(self.resamples, np.nan))
        generator = np.random.default_rng(self.seed)
        resampled = np.empty(self.resamples)
        for index in range(self.resamples):
            drawn = generator.integers(0, self.num_examples, self.num_examples)  # [n]
            resampled[index] = metric.value(statistics[drawn].sum(axis=0))
        return MetricSample(value, resampled)
