"""Histograms with fixed bounds, as Prometheus reads them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

_SECONDS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048)
_LONG_SECONDS = (*_SECONDS, 4.096, 8.192, 16.384, 32.768, 65.536)
_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True)
class Distribution:
    """A snapshot: ``counts[i]`` values lie above ``bounds[i - 1]`` and up to ``bounds[i]``.

    ``counts`` has one entry more than ``bounds``, for values above all of them. ``total`` is the
    sum of all values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @classmethod
    def merged(cls, parts: Sequence[Distribution]) -> Distribution:
        """Return the sum of distributions with the same bounds."""
        counts = zip(*(part.counts for part in parts), strict=True)
        return cls(parts[0].bounds, tuple(map(sum, counts)), sum(part.total for part in parts))


class Histogram:
    """Counts values in one thread; any thread may take a `snapshot`."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def snapshot(self) -> Distribution:
        """Return the counts so far."""
        return Distribution(self._bounds, tuple(self._counts), self._total)


class BatchHistograms:
    """The distributions that a running batch observes, per request, call or step."""

    def __init__(self, num_layers: int) -> None:
        self.queue_seconds = Histogram(_LONG_SECONDS)  # from arrival to the prompt's first call
        self.prefill_seconds = Histogram(_SECONDS)  # of a call that runs prompts or a part of one
        self.step_seconds = Histogram(_SECONDS)  # of a decode step, without sampling
        self.step_rows = Histogram(_ROWS)
        self.step_union_layers = Histogram(range(1, num_layers + 1))  # that a step called

    def snapshot(self) -> dict[str, Distribution]:
        """Return all distributions by name."""
        return {name: histogram.snapshot() for name, histogram in vars(self).items()}
