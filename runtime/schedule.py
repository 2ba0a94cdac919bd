"""Exit schedules: how many layers, and which, each generated token runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any

from ..engines.errors import ScheduleError
from .decay import DECAYS, Decay
from .placement import PLACEMENTS, Placement

MAX_HORIZON = 2**20

_REQUIRED = ("num_layers", "max_exit_layer", "min_exit_layer", "horizon")
_INTEGERS = (*_REQUIRED, "warmup_layers")
_PARAMETERS = {
    "decay": ("power", "rate", "steps", "table", "alpha"),
    "placement": ("tail",),
}


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
    min from then on. Every prompt token runs all ``num_layers``. The lowest ``warmup_layers``
    always run; lower-to-middle layers are bypassed, never the top.

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

    def __post_init__(self) -> None:
        problems = [*self._name_problems(), *self._bound_problems()]
        if not problems:
            problems = [*self._decay.problems(self), *self._placement.problems(self)]
        if not problems:
            problems = self._hole_problems()
        if problems:
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
        """Return the JSON object; a decay's or placement's own parameter only where it has one."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        document = {name: value for name, value in values.items() if value is not None}
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
        """All layers: what prompt tokens run."""
        return LayerPlan(tuple(range(self.num_layers)))

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
        stops = [segment.stop for segment in self.segments if layer in segment.plan.layers]
        if not stops:
            return -1
        return None if stops[-1] is None else stops[-1] - 1

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
        plans = {budget: LayerPlan(self._placement.layers(self, budget)) for budget in set(budgets)}
        return tuple(plans[budget] for budget in budgets)

    def _name_problems(self) -> list[str]:
        problems = []
        for name, value, registry in (
            ("decay", self.decay, DECAYS),
            ("placement", self.placement, PLACEMENTS),
        ):
            if not isinstance(value, str) or value not in registry:
                problems.append(f"{name} is {value!r}; allowed: {', '.join(registry)}")
        if problems:
            return problems
        for kind, rule in (("decay", self._decay), ("placement", self._placement)):
            chosen = f"{kind} {getattr(self, kind)}"
            for name in _PARAMETERS[kind]:
                value, wanted = getattr(self, name), rule.parameter == name
                if not wanted and value is not None:
                    problems.append(f"{name} is {value!r}; {chosen} has none")
                if wanted and value is None:
                    problems.append(f"{name} is missing; {chosen} needs it")
        return problems

    def _bound_problems(self) -> list[str]:
        problems = [
            f"{name} is {getattr(self, name)!r}; allowed: an integer"
            for name in _INTEGERS
            if type(getattr(self, name)) is not int
        ]
        if problems:
            return problems
        bounds = (
            ("num_layers", 1, None, "1 or more"),
            ("max_exit_layer", 1, self.num_layers, f"1 to num_layers, {self.num_layers}"),
            (
                "min_exit_layer",
                1,
                self.max_exit_layer,
                f"1 to max_exit_layer, {self.max_exit_layer}",
            ),
            ("warmup_layers", 0, self.num_layers, f"0 to num_layers, {self.num_layers}"),
            ("horizon", 1, MAX_HORIZON, f"1 to {MAX_HORIZON}"),
        )
        for name, low, high, allowed in bounds:
            value = getattr(self, name)
            if value < low or (high is not None and value > high):
                problems.append(f"{name} is {value}; allowed: {allowed}")
        return problems

    def _hole_problems(self) -> list[str]:
        """Each place where a token runs a layer that the token before it did not run."""
        problems = []
        for before, after in pairwise(self.segments):
            missing = sorted(set(after.plan.layers) - set(before.plan.layers))
            if missing:
                problems.append(
                    f"generated token {after.start} runs layer {missing[0]}, which token "
                    f"{after.start - 1} did not: a hole in that layer's KV cache; allowed: sets "
                    "of layers that only shrink"
                )
        return [f"{problem}{self._hole_advice}" for problem in problems]

    @property
    def _hole_advice(self) -> str:
        advice = self._placement.hole_advice
        return f"; {advice}" if advice else ""


def realised_depth(layers_per_token: Sequence[int]) -> float | None:
    """Mean layers of all output tokens but the first, which belongs to the prompt.

    None where there is no second token.

    >>> realised_depth([6, 4, 3, 3, 2])
    3.0
    """
    generated = layers_per_token[1:]
    return sum(generated) / len(generated) if generated else None
