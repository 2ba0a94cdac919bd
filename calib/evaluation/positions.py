"""Loss by position of the completion: whether skipping costs less at later tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from ..perplexity import perplexity
from .bootstrap import Bootstrap, Estimate
from .metrics import Outcome, Ratio

_FIRST_BREAK = 8  # later breaks double


@dataclass(frozen=True)
class PositionFigure:
    """Losses of tokens ``first`` … ``last`` of all completions, in nats per token."""

    first: int
    last: int
    num_tokens: int
    loss: Estimate
    perplexity: Estimate
    loss_over_full: Estimate  # paired by example

    @property
    def name(self) -> str:
        """Label such as ``8–15``."""
        return str(self.first) if self.first == self.last else f"{self.first}–{self.last}"


@dataclass(frozen=True)
class PositionProfile:
    """Figures of one schedule by position.

    ``late_minus_early`` is the loss relative to full depth at the last positions minus that at the
    first positions after 0. Negative: skipping costs less later. None with fewer than two such
    buckets.
    """

    figures: tuple[PositionFigure, ...]
    late_minus_early: Estimate | None


def loss_at(positions: range) -> Ratio:
    """Return the mean negative log-probability, in nats, of the tokens at some positions."""
    chosen = slice(positions.start, positions.stop)

    def parts(outcome: Outcome) -> tuple[float, float]:
        return sum(outcome.logprobs[chosen]), len(outcome.logprobs[chosen])

    return Ratio("loss", parts, digits=3, better="lower", scale=-1.0)


def position_buckets(lengths: Sequence[int]) -> tuple[range, ...]:
    """Return positions 0, 1–7, 8–15, 16–31, 32–63, …, each twice as long as the one before.

    Position 0 has its own bucket because the prompt's last token predicts it, at the prompt's
    depth. The last bucket takes all remaining positions; at least half of the completions reach its
    start.

    >>> position_buckets([3, 20, 40])
    (range(0, 1), range(1, 8), range(8, 16), range(16, 40))
    """
    starts, longest = [0, 1], max(lengths)
    start = _FIRST_BREAK
    while start < median_low(lengths):
        starts.append(start)
        start *= 2
    stops = [*starts[1:], longest]
    return tuple(
        range(start, stop) for start, stop in zip(starts, stops, strict=True) if start < stop
    )


def position_profiles(
    outcomes: Sequence[Sequence[Outcome]], bootstrap: Bootstrap, confidence: float
) -> list[PositionProfile]:
    """Return one profile per schedule; ``outcomes`` begin with full depth's.

    All schedules and positions use the same resamples of the examples, so differences are paired.
    """
    buckets = position_buckets([len(outcome.logprobs) for outcome in outcomes[0]])
    samples = [
        [bootstrap.sample(loss_at(bucket), schedule) for bucket in buckets] for schedule in outcomes
    ]
    full = samples[0]
    profiles = []
    for schedule, losses in zip(outcomes, samples, strict=True):
        figures = tuple(
            PositionFigure(
                first=bucket.start,
                last=bucket.stop - 1,
                num_tokens=sum(
                    len(outcome.logprobs[bucket.start : bucket.stop]) for outcome in schedule
                ),
                loss=(loss := sample.estimate(confidence)),
                perplexity=Estimate(*map(perplexity, (loss.value, loss.low, loss.high))),
                loss_over_full=(sample - reference).estimate(confidence),
            )
            for bucket, sample, reference in zip(buckets, losses, full, strict=True)
        )
        change = None
        if len(buckets) > 2:
            late_minus_early = (losses[-1] - full[-1]) - (losses[1] - full[1])
            change = late_minus_early.estimate(confidence)
        profiles.append(PositionProfile(figures, change))
    return profiles
