"""What an engine has done so far, in numbers that an operator can act on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ..schedule import LayerPlan
from .histogram import Distribution, EngineHistograms


@dataclass(frozen=True)
class EngineStats:
    """A snapshot of `Engine.stats`.

    ``layer_calls[l]`` and ``layer_rows[l]``: how often decode steps called layer l, and on how many
    rows in all. What a layer's weights were read for is their quotient. ``histograms``: those of
    `EngineHistograms`, by name.
    """

    requests: int  # that wait, run, or have ended and were not taken
    running: int  # rows
    waiting: int  # requests
    submitted: int  # requests
    finished: int
    aborted: int
    failed: int
    reserved_bytes: int
    prefix_bytes: int  # hold beginnings of prompts, beside those reserved
    limit_bytes: int
    prompt_tokens: int
    prefix_tokens: int  # of these, what a prompt before had made
    generated_tokens: int
    steps: int
    step_rows: int
    layer_calls: tuple[int, ...]
    layer_rows: tuple[int, ...]
    prefill_seconds: float
    decode_seconds: float
    sampling_seconds: float
    scoring_seconds: float = 0.0
    histograms: Mapping[str, Distribution] = field(default_factory=dict)

    @property
    def mixing_loss(self) -> float | None:
        """Layers read a step ÷ layers that a row ran in the mean: 1.0 if all rows stood alike.

        Of steps in which each row runs 12 layers in the mean and some row 16: 1.33. None before the
        first step. What it costs depends on how much of a step reading weights is.
        """
        if not self.step_rows:
            return None
        return sum(self.layer_calls) / self.steps / (sum(self.layer_rows) / self.step_rows)

    @classmethod
    def total(cls, stats: Sequence[EngineStats]) -> EngineStats:
        """What several engines of one bundle, at least one, did together."""
        return cls(
            **{one.name: _sum([getattr(each, one.name) for each in stats]) for one in fields(cls)}
        )

    def ended(self, lost: int) -> EngineStats:
        """What is left of it once its engine is gone, ``lost`` requests that ran with it."""
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
    """The engine's own, which grow."""

    layer_calls: list[int]
    layer_rows: list[int]
    histograms: EngineHistograms
    submitted: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    prefix_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    step_rows: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    sampling_seconds: float = 0.0
    scoring_seconds: float = 0.0

    def count_prefill(self, seconds: float) -> None:
        """Count a call for prompts, or for a part of one."""
        self.prefill_seconds += seconds
        self.histograms.prefill_seconds.observe(seconds)

    def count_step(self, plans: Sequence[LayerPlan], seconds: float) -> None:
        """Count a decode step, whose rows ran these plans."""
        self.decode_seconds += seconds
        self.steps += 1
        self.step_rows += len(plans)
        rows_of = Counter(plans)
        union = set[int]().union(*(plan.layers for plan in rows_of))
        for layer in union:
            self.layer_calls[layer] += 1
        for plan, count in rows_of.items():
            for layer in plan.layers:
                self.layer_rows[layer] += count
        self.histograms.step_seconds.observe(seconds)
        self.histograms.step_rows.observe(len(plans))
        self.histograms.step_union_layers.observe(len(union))
