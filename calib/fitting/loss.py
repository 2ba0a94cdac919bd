"""What a schedule costs: teacher-forced negative log-likelihood of the data's completions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ...runtime.schedule import ExitSchedule
from ..data.tokenised import TokenisedExample

if TYPE_CHECKING:
    from ...runtime.generator import Generator


class Scorer(Protocol):
    """Knows the examples; each has a fixed place."""

    @property
    def num_tokens(self) -> Sequence[int]:
        """Tokens of each example's completion."""

    def score(self, schedule: ExitSchedule, start: int, stop: int) -> list[float]:
        """Return the summed negative log-likelihood, in nats, of examples ``start`` … stop−1."""


class GeneratorScorer:
    """Scores with a bundle's engines: each token at the depth that generating it would have."""

    def __init__(self, generator: Generator, examples: Sequence[TokenisedExample]) -> None:
        self._generator = generator
        self._examples = examples
        self.num_tokens = [len(example.completion_token_ids) for example in examples]

    def score(self, schedule: ExitSchedule, start: int, stop: int) -> list[float]:
        """One pass an example."""
        chosen = self._examples[start:stop]
        results = self._generator.score(
            [example.prompt_token_ids for example in chosen],
            [example.completion_token_ids for example in chosen],
            schedule=schedule,
        )
        return [-result.cumulative_logprob for result in results]


@dataclass
class ScoredSchedule:
    """One schedule and what the first examples cost with it."""

    schedule: ExitSchedule
    speedup: float  # expected: of the steps after the prompt, or of the call
    num_tokens: Sequence[int]  # of every example
    nats: list[float] = field(default_factory=list)  # of the examples scored so far

    def extend(self, scorer: Scorer, count: int) -> int:
        """Score what is missing of the first ``count`` examples; return how many those were."""
        missing = max(0, count - len(self.nats))
        if missing:
            self.nats += scorer.score(self.schedule, len(self.nats), count)
        return missing

    def loss(self, count: int) -> float:
        """Nats a token over the first ``count`` examples, all of which must be scored."""
        assert len(self.nats) >= count
        return sum(self.nats[:count]) / sum(self.num_tokens[:count])

    @property
    def mean_loss(self) -> float:
        """Nats a token over all examples scored so far."""
        return self.loss(len(self.nats))


@dataclass(frozen=True)
class LossDifference:
    """Nats a token more than a reference, and the standard error over examples."""

    value: float
    standard_error: float


def loss_difference(scored: ScoredSchedule, reference: ScoredSchedule) -> LossDifference:
    """Compare two schedules example by example: what is hard for both cancels out.

    A ratio estimator over examples: summed differences over summed tokens, with the standard error
    of Cochran, Sampling Techniques (1977), section 6.4; nan for one example. Differences of 2 and
    4 nats over 10 tokens each are 0.3 nats a token, with an error of 0.1.
    """
    count = len(scored.nats)
    tokens = scored.num_tokens[:count]
    gaps = [own - other for own, other in zip(scored.nats, reference.nats, strict=True)]
    value = sum(gaps) / sum(tokens)
    if count < 2:
        return LossDifference(value, math.nan)
    squares = sum((gap - value * length) ** 2 for gap, length in zip(gaps, tokens, strict=True))
    return LossDifference(value, math.sqrt(squares * count / (count - 1)) / sum(tokens))
