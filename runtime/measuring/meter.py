"""The meter of all speed-ups: calls take turns with a reference until their ratio is known.

A machine's speed drifts and stalls, above all if others share it: in a window of 27 ms, 2.6 and
3.6 were measured where 1.5 and 1.9 are true. So a ratio is the median of many rounds, each of which
runs the reference and the candidates one right after the other, and it comes with its interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, median
from time import perf_counter
from typing import Generic, TypeVar

from ...engines.host.console import interval

SECONDS = 20.0  # of a measurement, if its interval stays wide
_LEAST_SECONDS = 2.0  # a few calls in a row may all be lucky
_LEAST_TURNS = 3
_PASSES = 6  # passes through all items that suffice for an interval
_PARTS = 20  # of a pass; with fewer passes their ratios make the interval
_NARROW = 0.04  # width of an interval ÷ its ratio
_CONFIDENCE = 0.95
_TOLERANCE = 1.05  # by which noise may exceed what is possible

Key = TypeVar("Key", bound=Hashable)
Turn = Mapping[Key, float]  # seconds of each part of a turn


@dataclass(frozen=True)
class Ratio:
    """How many times as long the reference takes: the median of rounds, with its interval.

    The interval covers the true median with 95 % confidence, whatever the distribution. With fewer
    than 6 rounds it is their range. All three are nan if ``disturbed`` says why there is no ratio.
    """

    value: float
    low: float
    high: float
    disturbed: str = ""

    @classmethod
    def of(cls, rounds: Sequence[float]) -> Ratio:
        """Return the median of ``rounds`` and its interval, which ends at two of them by rank."""
        ordered, count = sorted(rounds), len(rounds)
        deviations = NormalDist().inv_cdf((1 + _CONFIDENCE) / 2)
        rank = max(0, math.floor((count - 1 - deviations * math.sqrt(count)) / 2))
        return cls(median(ordered), ordered[rank], ordered[-1 - rank])

    @property
    def is_narrow(self) -> bool:
        """True if more rounds would hardly change the ratio."""
        return self.high - self.low <= _NARROW * self.value

    def times(self, factor: float) -> Ratio:
        """Return the ratio for another unit of work."""
        return replace(
            self, value=self.value * factor, low=self.low * factor, high=self.high * factor
        )

    def within(self, most: float, what: str) -> Ratio:
        """Refuse a ratio above ``most``, as ``what`` says: other work must have disturbed it."""
        if not self.value > most * _TOLERANCE:
            return self
        reason = f"{self.value:.2f}× was measured, but {what} at most {most:.2f}×"
        return replace(NOT_TIMED, disturbed=reason)

    def __str__(self) -> str:
        if self.disturbed:
            return "disturbed"
        if self.low == self.high:
            return f"{self.value:.2f}×"
        return interval(self.value, self.low, self.high, 2).replace(" ", "× ", 1)


NOT_TIMED = Ratio(math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class Turns(Generic[Key]):
    """The seconds of all turns; turn i ran item i modulo ``items``."""

    turns: Sequence[Turn[Key]]
    items: int

    def ratio(self, own: Key, reference: Key) -> Ratio:
        """Return the seconds of ``reference`` ÷ those of ``own``.

        A round is a pass through all items, or a twentieth of one while there are few passes.
        """
        size = self.items
        if len(self.turns) < _PASSES * self.items:
            size = math.ceil(self.items / _PARTS)
        starts = range(0, len(self.turns) - size + 1, size)
        rounds = [self.turns[start : start + size] for start in starts]
        return Ratio.of(
            [
                sum(turn[reference] for turn in turns) / sum(turn[own] for turn in turns)
                for turns in rounds
            ]
        )

    def seconds(self, key: Key) -> list[float]:
        """Return the median seconds of ``key`` for each item."""
        return [
            median(turn[key] for turn in self.turns[item :: self.items])
            for item in range(self.items)
        ]


def measure(
    turn: Callable[[int], Turn[Key]],
    pairs: Sequence[tuple[Key, Key]],
    *,
    items: int = 1,
    seconds: float = SECONDS,
    clock: Callable[[], float] = perf_counter,
) -> Turns[Key]:
    """Take turns until the ratio of each of ``pairs``, a key and its reference, is narrow.

    ``turn(item)`` runs everything once on an item, e.g. a prompt, and returns the seconds by key.
    Every item gets a turn, and there are at least three turns and two seconds of them. After
    ``seconds`` it ends in any case.
    """
    taken: list[Turn[Key]] = []
    found = Turns(taken, items)
    start, due = clock(), max(items, _LEAST_TURNS)
    while True:
        taken.append(turn(len(taken) % items))
        if len(taken) < max(items, _LEAST_TURNS):
            continue
        elapsed = clock() - start
        if elapsed >= seconds:
            return found
        if elapsed >= _LEAST_SECONDS and len(taken) >= due:
            if all(found.ratio(*pair).is_narrow for pair in pairs):
                return found
            due = len(taken) + math.ceil(len(taken) / 10)
