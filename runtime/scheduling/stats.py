"""Figures of a running batch that an operator can act on."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from ..drafting.config import MAX_DRAFT_TOKENS
from ..schedule import LayerPlan

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
        self.step_union_layers = Histogram(range(1, num_layers + 1))  # layers that a step called
        self.accepted_of_a_pass = Histogram(range(MAX_DRAFT_TOKENS + 1))  # drafts of one row

    def snapshot(self) -> dict[str, Distribution]:
        """Return all distributions by name."""
        return {name: histogram.snapshot() for name, histogram in vars(self).items()}


@dataclass(frozen=True)
class EngineStats:
    """A snapshot by `RunningBatch.stats`.

    Decode steps called layer l ``layer_calls[l]`` times, on ``layer_rows[l]`` rows in all; the
    quotient is the number of rows per read of the layer's weights. ``histograms`` are those of
    `BatchHistograms`, by name.
    """

    requests: int  # waiting, running, or ended but not taken
    running: int  # rows
    waiting: int  # requests
    submitted: int  # requests
    finished: int
    aborted: int
    failed: int
    reserved_bytes: int
    prefix_bytes: int  # of cached prefixes, in addition to reserved_bytes
    limit_bytes: int
    prompt_tokens: int
    prefix_tokens: int  # of these, taken from cached prefixes
    generated_tokens: int
    steps: int
    step_rows: int
    step_depth: float  # the mean depth of a step's rows, summed over the steps
    layer_calls: tuple[int, ...]
    layer_rows: tuple[int, ...]
    prefill_seconds: float
    decode_seconds: float
    sampling_seconds: float
    scoring_seconds: float = 0.0
    draft_steps: int = 0  # draft steps of layers
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0  # of these, those that were right
    draft_seconds: float = 0.0  # the part of decode_seconds before passes that check drafts
    drafting: int = 0  # the most tokens that a row drafts now; 0 while there are no drafts
    histograms: Mapping[str, Distribution] = field(default_factory=dict)

    @property
    def mixing_loss(self) -> float | None:
        """Layers that steps read ÷ the mean depth of their rows; None before the first step.

        It is 1.0 if all rows of a step run the same layers, and 1.33 if rows run 12 layers on
        average and one of them runs 16. Its cost depends on what share of a step reading weights
        takes.
        """
        return sum(self.layer_calls) / self.step_depth if self.steps else None

    @classmethod
    def total(cls, stats: Sequence[EngineStats]) -> EngineStats:
        """Return the sum of the figures of one or more batches of one bundle.

        ``drafting``, a number of tokens per row, is that of the batch that drafts most.
        """
        sums = {one.name: _sum([getattr(each, one.name) for each in stats]) for one in fields(cls)}
        return cls(**sums | {"drafting": max(each.drafting for each in stats)})

    def ended(self, lost: int) -> EngineStats:
        """Return the figures after the batch has died with ``lost`` running requests."""
        failed = self.failed + lost
        return replace(
            self,
            requests=0,
            running=0,
            waiting=0,
            submitted=self.finished + self.aborted + failed,
            failed=failed,
            reserved_bytes=0,
            prefix_bytes=0,
            limit_bytes=0,
            drafting=0,
        )


def _sum(values: Sequence[Any]) -> Any:  # noqa: ANN401  (numbers, tuples of such, histograms)
    match values[0]:
        case tuple():
            return tuple(map(sum, zip(*values, strict=True)))
        case Mapping():
            return {name: Distribution.merged([one[name] for one in values]) for name in values[0]}
    return sum(values)


@dataclass
class Counters:
    """The counters of a running batch, which only grow."""

    layer_calls: list[int]
    layer_rows: list[int]
    histograms: BatchHistograms
    submitted: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    prefix_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    step_rows: int = 0
    step_depth: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    sampling_seconds: float = 0.0
    scoring_seconds: float = 0.0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    draft_seconds: float = 0.0

    @classmethod
    def zero(cls, num_layers: int) -> Self:
        """Return counters of a batch that has done nothing yet."""
        return cls([0] * num_layers, [0] * num_layers, BatchHistograms(num_layers))

    @property
    def text_seconds(self) -> float:
        """The time that generated texts have taken: their prompts, their steps and sampling."""
        return self.prefill_seconds + self.decode_seconds + self.sampling_seconds

    def snapshot(self, **present: int) -> EngineStats:
        """Return all figures; ``present`` has those that describe this moment."""
        values: dict[str, Any] = vars(self) | {
            "layer_calls": tuple(self.layer_calls),
            "layer_rows": tuple(self.layer_rows),
            "histograms": self.histograms.snapshot(),
        }
        return EngineStats(**(values | present))

    def count_prefill(self, seconds: float) -> None:
        """Count a call that ran prompts or a part of one."""
        self.prefill_seconds += seconds
        self.histograms.prefill_seconds.observe(seconds)

    def count_drafts(self, drafted: int, accepted: int) -> None:
        """Count the drafts of one row in one pass, if it had any."""
        if drafted:
            self.draft_tokens += drafted
            self.accepted_draft_tokens += accepted
            self.histograms.accepted_of_a_pass.observe(accepted)

    def count_step(self, plans: Sequence[LayerPlan], seconds: float) -> None:
        """Count a decode step whose rows ran ``plans``."""
        self.decode_seconds += seconds
        self.steps += 1
        self.step_rows += len(plans)
        first = plans[0]
        if all(plan is first for plan in plans):  # the common case, without hashing plans
            groups: Iterable[tuple[LayerPlan, int]] = [(first, len(plans))]
            union: Collection[int] = first.layers
        else:
            groups = Counter(plans).items()
            union = set[int]().union(*(plan.layers for plan, _ in groups))
        self.step_depth += sum(len(plan) * count for plan, count in groups) / len(plans)
        for layer in union:
            self.layer_calls[layer] += 1
        for plan, count in groups:
            for layer in plan.layers:
                self.layer_rows[layer] += count
        self.histograms.step_seconds.observe(seconds)
        self.histograms.step_rows.observe(len(plans))
        self.histograms.step_union_layers.observe(len(union))
