"""Exit schedules: how many layers, and which, each generated token runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cached_property
from itertools import groupby
from typing import Any

from ...engines.errors import ScheduleError
from .decay import DECAYS, Decay, round_half_up
from .placement import PLACEMENTS, Placement
from .problems import schedule_problems

_REQUIRED = ("num_layers", "max_exit_layer", "min_exit_layer", "horizon")


@dataclass(frozen=True)
class LayerPlan:
    """The layers that one step runs, lowest first."""

    layers: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[int]:
        return iter(self.layers)


@dataclass(frozen=True)
class Segment:
    """A run of generated tokens with one plan: ``start`` ≤ i < ``stop``; None: for ever."""

    start: int
    stop: int | None
    plan: LayerPlan


@dataclass(frozen=True, kw_only=True)
class ExitSchedule:
    """Budgets that never grow, and the layers which each budget runs (SkipDecode, 2307.02628).

    Generated token i = 0, 1, … (the i-th after the prompt, when it is fed back) runs
    ``budget(i)`` layers: from ``max_exit_layer`` to ``min_exit_layer`` over ``horizon`` tokens,
    min from then on. Prompt tokens run all ``num_layers``, or with ``prompt="decay"`` from all to
    ``max_exit_layer`` over the prompt. The lowest ``warmup_layers`` always run; which others do is
    the ``placement``'s rule.

    >>> schedule = ExitSchedule(num_layers=6, max_exit_layer=4, min_exit_layer=2, horizon=4)
    >>> [schedule.budget(i) for i in range(6)]
    [4, 3, 3, 2, 2, 2]
    >>> schedule.plan(1).layers
    (0, 4, 5)
    >>> [schedule.last_index(layer) for layer in range(6)]  # None: never stops
    [None, -1, -1, 0, 2, None]

    ``power``, ``rate``, ``steps``, ``table`` and ``alpha`` belong to the decays power, exponential,
    step, table and d3, ``tail`` to the placement d3. Raises ScheduleError with all problems at
    once; sets that are not nested leave holes in a KV cache and are refused with the position and
    the layer.
    """

    num_layers: int
    max_exit_layer: int
    min_exit_layer: int
    warmup_layers: int = 1
    horizon: int
    decay: str = "linear"
    placement: str = "top"
    power: float | None = None
    rate: float | None = None
    steps: int | None = None
    table: tuple[int, ...] | None = None
    alpha: float | None = None
    tail: int | None = None
    prompt: str = "full"

    def __post_init__(self) -> None:
        if problems := schedule_problems(self):
            raise ScheduleError("exit schedule", *problems)

    @classmethod
    def full(cls, num_layers: int) -> ExitSchedule:
        """Return the schedule that runs all layers for every token."""
        return cls(
            num_layers=num_layers,
            max_exit_layer=num_layers,
            min_exit_layer=num_layers,
            warmup_layers=0,
            horizon=1,
            decay="constant",
        )

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> ExitSchedule:
        """Build a schedule from its JSON object; unknown and missing keys are refused."""
        if not isinstance(document, Mapping):
            raise ScheduleError("exit schedule", f"is {document!r}; allowed: a JSON object")
        names = [field.name for field in fields(cls)]
        problems = [
            f"key {key!r} is unknown; allowed: {', '.join(names)}"
            for key in document
            if key not in names
        ]
        problems += [f"key {key!r} is missing" for key in _REQUIRED if key not in document]
        if problems:
            raise ScheduleError("exit schedule", *problems)
        table = document.get("table")
        tuples = {"table": tuple(table)} if isinstance(table, list) else {}
        return cls(**{**document, **tuples})

    def to_document(self) -> dict[str, Any]:
        """Return the JSON object.

        A decay's or placement's own parameter is there only where it has one, ``prompt`` only
        where it is not "full".
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        document = {name: value for name, value in values.items() if value is not None}
        if self.prompt == "full":
            del document["prompt"]
        if self.table is not None:
            document["table"] = list(self.table)
        return document

    def budget(self, index: int) -> int:
        """Return how many layers generated token ``index`` ≥ 0 runs."""
        return len(self.plan(index))

    def plan(self, index: int) -> LayerPlan:
        """Return the layers that generated token ``index`` ≥ 0 runs; a look-up, no computation."""
        if index < 0:
            raise IndexError(f"generated index is {index}; allowed: 0 or more")
        return self._plans[min(index, self.horizon)]

    @cached_property
    def full_plan(self) -> LayerPlan:
        """All layers: what prompt tokens run, with ``prompt="decay"`` the first of them."""
        return LayerPlan(tuple(range(self.num_layers)))

    @cached_property
    def prompt_plans(self) -> tuple[LayerPlan, ...]:
        """What prompt tokens run, from the first token's all layers down to the last token's.

        One plan with ``prompt="full"``; else one for each budget, of which short prompts skip some.
        """
        last = self.num_layers if self.prompt == "full" else self.max_exit_layer
        return tuple(self._plan_of(budget) for budget in range(self.num_layers, last - 1, -1))

    def prompt_budget(self, index: int, length: int) -> int:
        """Return how many layers token ``index`` of a prompt of ``length`` tokens runs.

        With ``prompt="decay"``, L − (L−max)·index/(length−1), rounded half up; a single token runs
        all. 12 layers, max 8, 5 tokens: 12 11 10 9 8.
        """
        if not 0 <= index < length:
            raise IndexError(f"prompt index is {index}; allowed: 0 to {length - 1}")
        if self.prompt == "full" or length == 1:
            return self.num_layers
        fall = self.num_layers - self.max_exit_layer
        return round_half_up(self.num_layers - Fraction(fall * index, length - 1))

    def prompt_prefix(self, layer: int, length: int) -> int:
        """Return how many tokens of a prompt of ``length`` run ``layer``: always the first ones.

        Budgets never grow along the prompt and their sets are nested. 12 layers, max 8, warm-up 1,
        5 tokens: layers 0 and 5–11 run 5 tokens, layer 4 runs 4 (budget 9 or more), 3 runs 3, 2
        runs 2, and layer 1, which needs the whole budget, 1.
        """
        needed = self._prompt_needs[layer]
        if self.prompt == "full" or length == 1 or needed == self.max_exit_layer:
            return length
        # round_half_up(L − fall·j/(P−1)) ≥ needed, solved for the largest j
        fall = self.num_layers - self.max_exit_layer
        last = (2 * (self.num_layers - needed) + 1) * (length - 1) // (2 * fall)
        return min(length, last + 1)

    def active_lengths(self, prompt_length: int, num_fed: int) -> list[int]:
        """For each layer, how many tokens of one row run it: always the first ones.

        The row is a prompt and ``num_fed`` generated tokens that are fed back.
        """
        lengths = []
        for layer in range(self.num_layers):
            last = self.last_index(layer)
            steps = num_fed if last is None else min(num_fed, last + 1)
            lengths.append(self.prompt_prefix(layer, prompt_length) + steps)
        return lengths

    @property
    def is_full(self) -> bool:
        """Whether every token runs all layers."""
        return self.min_exit_layer == self.num_layers

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The runs of equal plans, in order; the last one never stops."""
        runs = [list(run) for _, run in groupby(range(self.horizon + 1), self._plans.__getitem__)]
        stops = [*(run[0] for run in runs[1:]), None]
        return tuple(
            Segment(run[0], stop, self._plans[run[0]])
            for run, stop in zip(runs, stops, strict=True)
        )

    def last_index(self, layer: int) -> int | None:
        """Return the last generated index at which ``layer`` runs.

        -1 if it never runs after the prompt, None if it never stops.
        """
        if not 0 <= layer < self.num_layers:
            raise IndexError(f"layer is {layer}; allowed: 0 to {self.num_layers - 1}")
        return self._last_indices[layer]

    def average_budget(self, num_tokens: int | None = None) -> float:
        """Return the mean budget of the first ``num_tokens`` generated (default: the horizon)."""
        count = self.horizon if num_tokens is None else num_tokens
        if count < 1:
            raise IndexError(f"num_tokens is {count}; allowed: 1 or more")
        within = sum(len(plan) for plan in self._plans[: min(count, self.horizon)])
        return (within + max(0, count - self.horizon) * self.budget(self.horizon)) / count

    @cached_property
    def _decay(self) -> type[Decay]:
        decay: type[Decay] = DECAYS.load(self.decay)
        return decay

    @cached_property
    def _placement(self) -> type[Placement]:
        placement: type[Placement] = PLACEMENTS.load(self.placement)
        return placement

    @cached_property
    def _plans(self) -> tuple[LayerPlan, ...]:
        """One plan a token of the horizon, then the plan from there on; equal ones are shared."""
        budgets = [self._decay.budget(self, index) for index in range(self.horizon)]
        budgets.append(self.min_exit_layer)
        plans = {budget: self._plan_of(budget) for budget in set(budgets)}
        return tuple(plans[budget] for budget in budgets)

    @cached_property
    def _last_indices(self) -> tuple[int | None, ...]:
        """For each layer, ``last_index``; the last segment that runs it says."""
        last: list[int | None] = [-1] * self.num_layers
        for segment in self.segments:
            for layer in segment.plan.layers:
                last[layer] = None if segment.stop is None else segment.stop - 1
        return tuple(last)

    @cached_property
    def _prompt_needs(self) -> tuple[int, ...]:
        """For each layer, the smallest budget of a prompt token that runs it."""
        return tuple(
            min(len(plan) for plan in self.prompt_plans if layer in plan.layers)
            for layer in range(self.num_layers)
        )

    def _plan_of(self, budget: int) -> LayerPlan:
        return LayerPlan(self._placement.layers(self, budget))


def realised_depth(layers_per_token: Sequence[int]) -> float | None:
    """Mean layers of all output tokens but the first, which belongs to the prompt.

    None where there is no second token.

    >>> realised_depth([6, 4, 3, 3, 2])
    3.0
    """
    generated = layers_per_token[1:]
    return sum(generated) / len(generated) if generated else None
