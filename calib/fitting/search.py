"""Score schedules by the loss of completions; search for those that are Pareto-optimal."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Protocol

from pydantic import Field

from ...engines.checking import Option, ValidatedConfig
from ...runtime.schedule import ExitSchedule
from ..data.tokenised import TokenisedExample
from .space import Point, SearchSpace

if TYPE_CHECKING:
    from ...runtime.generator import Generator

_RANDOM_PART = 0.25  # of the budget; neighbours of the front get the rest
_MOVE = 16  # neighbours to score before updating the front
_KEPT_PART = 0.25  # share of candidates that reaches the next round
_LEAST_KEPT = 12
_ROUNDS = (1 / 16, 1 / 4, 1.0)  # shares of the examples
_FEWEST_EXAMPLES = 4

Advance = Callable[[str, int], None]  # called with a label and the number of texts it took


class SearchConfig(ValidatedConfig):
    """Options of the search. ``budget`` is the number of candidates in the first round."""

    budget: Annotated[int, Option()] = Field(default=256, ge=1, description="schedules to score")
    seed: int = Field(default=0, ge=0, description="for examples and search")


@dataclass(frozen=True)
class SearchResult:
    """Candidates scored on every example, and the sizes of all rounds."""

    finalists: tuple[ScoredSchedule, ...]
    num_scored: int
    is_exhaustive: bool  # the first round scored every schedule of the space
    round_sizes: tuple[tuple[int, int], ...]  # (candidates, examples) of each round


class ScheduleSearch:
    """Scores many candidates on few examples, and few candidates on all.

    The first round spends a quarter of the budget on random points, then scores neighbours of the
    current front (Pareto local search: Paquete, Chiarandini and Stützle 2004) until the budget or
    the space is exhausted. The quarter nearest the front continues with four times the examples,
    twice (successive halving: Jamieson and Talwalkar 2016, with two costs). All candidates are
    scored on the same examples. No candidate is excluded for its number of layers, because a model
    tuned to skip may have *lower* loss with fewer layers.

    With 96 examples and a budget of 256: 256 candidates on 6, 64 on 24, 16 on 96.
    """

    def __init__(
        self,
        space: SearchSpace,
        scorer: Scorer,
        speedup: Callable[[ExitSchedule], float],
        config: SearchConfig,
        advance: Advance,
    ) -> None:
        self._space = space
        self._scorer = scorer
        self._speedup = speedup
        self._config = config
        self._advance = advance
        self._random = random.Random(config.seed)
        total = len(scorer.num_tokens)
        self._rounds = sorted(
            {min(total, max(_FEWEST_EXAMPLES, round(total * part))) for part in _ROUNDS}
        )
        self._known: dict[ExitSchedule, ScoredSchedule] = {}  # includes those scored on request
        self._scored: dict[ExitSchedule, ScoredSchedule] = {}  # scored in the first round
        self._origins: dict[ExitSchedule, Point] = {}

    def run(self) -> SearchResult:
        """Return the candidates that reached the last round, in no particular order."""
        is_exhaustive = self._explore()
        candidates: Sequence[ScoredSchedule] = list(self._scored.values())
        sizes = [(len(candidates), self._rounds[0])]
        for before, count in zip(self._rounds, self._rounds[1:], strict=False):
            candidates = _nearest_front(candidates, before)
            for candidate in candidates:
                self._extend(candidate, count)
            sizes.append((len(candidates), count))
        return SearchResult(tuple(candidates), len(self._scored), is_exhaustive, tuple(sizes))

    def score_fully(self, schedule: ExitSchedule) -> ScoredSchedule:
        """Score one schedule on every example."""
        scored = self._entry(schedule)
        self._extend(scored, self._rounds[-1])
        return scored

    def _explore(self) -> bool:
        """Spend the budget on the first round; return True if that covered the whole space."""
        fresh = self._unscored(self._space.shuffled(self._config.seed))
        self._take(fresh, round(self._config.budget * _RANDOM_PART) or 1)
        while (left := self._config.budget - len(self._scored)) > 0:
            neighbours = self._unscored(self._neighbours_of_front())
            if not self._take(neighbours, min(left, _MOVE)) and not self._take(fresh, 1):
                return True
        return next(fresh, None) is None

    def _take(self, points: Iterator[tuple[Point, ExitSchedule]], count: int) -> int:
        """Score up to ``count`` of ``points``; return their number."""
        taken = 0
        while taken < count and (entry := next(points, None)) is not None:
            point, schedule = entry
            self._origins[schedule] = point
            self._scored[schedule] = self._entry(schedule)
            self._extend(self._scored[schedule], self._rounds[0])
            taken += 1
        return taken

    def _unscored(self, points: Iterable[Point]) -> Iterator[tuple[Point, ExitSchedule]]:
        """Yield points whose schedule is still unscored when they are requested."""
        for point in points:
            schedule = self._space.schedule(point)
            if schedule is not None and schedule not in self._scored:
                yield point, schedule

    def _neighbours_of_front(self) -> list[Point]:
        """Return neighbours of all candidates on the front, from promising families first.

        A family is a placement with a warm-up. Untried families come first, then those with the
        lowest excess so far.
        """
        candidates = list(self._scored.values())
        points = [self._origins[candidate.schedule] for candidate in candidates]
        excess = _excess(candidates, self._rounds[0])
        promises: dict[tuple[str, int], float] = {}
        for point, over in zip(points, excess, strict=True):
            promises[_family(point)] = min(over, promises.get(_family(point), over))
        front = [point for point, over in zip(points, excess, strict=True) if over == 0]
        near = {neighbour for point in front for neighbour in self._space.neighbours(point)}
        ordered = sorted(near)  # the order of a set differs between processes
        self._random.shuffle(ordered)
        return sorted(ordered, key=lambda point: promises.get(_family(point), 0.0))

    def _entry(self, schedule: ExitSchedule) -> ScoredSchedule:
        if schedule not in self._known:
            self._known[schedule] = ScoredSchedule(
                schedule, self._speedup(schedule), self._scorer.num_tokens
            )
        return self._known[schedule]

    def _extend(self, candidate: ScoredSchedule, count: int) -> None:
        if texts := candidate.extend(self._scorer, count):
            self._advance(f"completions of {len(self._scored)} schedules scored", texts)


def _family(point: Point) -> tuple[str, int]:
    return point.placement, point.warmup


def _nearest_front(candidates: Sequence[ScoredSchedule], count: int) -> list[ScoredSchedule]:
    """Return the whole front on the first ``count`` examples, and the candidates nearest to it."""
    excess = _excess(candidates, count)
    ordered = sorted(range(len(candidates)), key=excess.__getitem__)
    kept = max(_LEAST_KEPT, round(len(candidates) * _KEPT_PART), excess.count(0))
    return [candidates[index] for index in ordered[:kept]]


def _excess(candidates: Sequence[ScoredSchedule], count: int) -> list[float]:
    return excess_costs([(entry.speedup, entry.loss(count)) for entry in candidates])


def excess_costs(points: Sequence[tuple[float, float]]) -> list[float]:
    """Return the excess of each (speed, cost) over the lowest cost of points at least as fast.

    The excess is 0 on the Pareto front.

    >>> excess_costs([(1.0, 2.0), (1.5, 1.0), (2.0, 4.0), (1.2, 3.0)])
    [1.0, 0.0, 0.0, 2.0]
    """
    excess = [0.0] * len(points)
    lowest = float("inf")
    fastest_first = sorted(range(len(points)), key=lambda index: -points[index][0])
    for _, group in groupby(fastest_first, key=lambda index: points[index][0]):
        indices = list(group)
        lowest = min(lowest, *(points[index][1] for index in indices))
        for index in indices:
            excess[index] = points[index][1] - lowest
    return excess


class Scorer(Protocol):
    """Scores a fixed list of examples."""

    @property
    def num_tokens(self) -> Sequence[int]:
        """Numbers of tokens in the examples' completions."""

    def score(self, schedule: ExitSchedule, start: int, stop: int) -> list[float]:
        """Return the summed negative log-likelihood, in nats, of examples ``start`` … stop−1."""


class GeneratorScorer:
    """Scores with a bundle's engines, each token at the depth at which it would be generated."""

    def __init__(self, generator: Generator, examples: Sequence[TokenisedExample]) -> None:
        self._generator = generator
        self._examples = examples
        self.num_tokens = [len(example.completion_token_ids) for example in examples]

    def score(self, schedule: ExitSchedule, start: int, stop: int) -> list[float]:
        """Run one pass per example."""
        chosen = self._examples[start:stop]
        results = self._generator.score(
            [example.prompt_token_ids for example in chosen],
            [example.completion_token_ids for example in chosen],
            schedule=schedule,
        )
        return [-result.cumulative_logprob for result in results]


@dataclass
class ScoredSchedule:
    """A schedule and its losses on the first examples."""

    schedule: ExitSchedule
    speedup: float  # expected, of the steps after the prompt or of the whole call
    num_tokens: Sequence[int]  # for every example
    nats: list[float] = field(default_factory=list)  # for the examples scored so far

    def extend(self, scorer: Scorer, count: int) -> int:
        """Score the unscored ones of the first ``count`` examples; return their number."""
        missing = max(0, count - len(self.nats))
        if missing:
            self.nats += scorer.score(self.schedule, len(self.nats), count)
        return missing

    def loss(self, count: int) -> float:
        """Return nats per token over the first ``count`` examples, which must be scored."""
        assert len(self.nats) >= count
        return sum(self.nats[:count]) / sum(self.num_tokens[:count])

    @property
    def mean_loss(self) -> float:
        """Nats per token over all examples scored so far."""
        return self.loss(len(self.nats))


@dataclass(frozen=True)
class LossDifference:
    """Nats per token above a reference, and the standard error over examples."""

    value: float
    standard_error: float


def loss_difference(scored: ScoredSchedule, reference: ScoredSchedule) -> LossDifference:
    """Compare two schedules example by example, so that hard examples cancel out.

    A ratio estimator: summed differences over summed tokens, with the standard error of Cochran,
    Sampling Techniques (1977), section 6.4, which is nan for one example. Differences of 2 and 4
    nats over 10 tokens each give 0.3 nats per token, with an error of 0.1.
    """
    count = len(scored.nats)
    tokens = scored.num_tokens[:count]
    gaps = [own - other for own, other in zip(scored.nats, reference.nats, strict=True)]
    value = sum(gaps) / sum(tokens)
    if count < 2:
        return LossDifference(value, math.nan)
    squares = sum((gap - value * length) ** 2 for gap, length in zip(gaps, tokens, strict=True))
    return LossDifference(value, math.sqrt(squares * count / (count - 1)) / sum(tokens))
