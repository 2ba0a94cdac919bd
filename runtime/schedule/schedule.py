"""Exit schedules: how many layers, and which, each generated token runs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cached_property
from typing import Any

from ...engines.checking import plain
from ...engines.errors import MOST_PROBLEMS, ScheduleError, few, shown
from .checks import schedule_problems, unknown_keys
from .decays import DECAYS, budget_changes
from .fields import ScheduleFields
from .placements import PLACEMENTS, layers_of
from .plan import LayerPlan, LayerRanges, Segment, generated_holes, prompt_holes
from .rounding import round_half_up

_REQUIRED = ("num_layers", "max_exit_layer", "min_exit_layer", "horizon")


@dataclass(frozen=True, kw_only=True, repr=False)
class ExitSchedule(ScheduleFields):
    """Budgets that never grow, and the layers that each budget runs (SkipDecode, 2307.02628).

    Generated token i = 0, 1, … (the i-th after the prompt, when it is fed back) runs
    ``budget(i)`` layers: from ``max_exit_layer`` to ``min_exit_layer`` over ``horizon`` tokens,
    min from then on. Prompt tokens run all ``num_layers``, or with ``prompt="decay"`` from all to
    ``max_exit_layer`` over the prompt. The lowest ``warmup_layers`` always run; the ``placement``
    decides which others do.

    >>> schedule = ExitSchedule(num_layers=6, max_exit_layer=4, min_exit_layer=2, horizon=4)
    >>> [schedule.budget(i) for i in range(6)]
    [4, 3, 3, 2, 2, 2]
    >>> schedule.plan(1).layers
    (0, 4, 5)
    >>> [schedule.last_index(layer) for layer in range(6)]  # None: never stops
    [None, -1, -1, 0, 2, None]

    Each of the last six fields is a parameter that one decay or placement requires. Numbers and
    arrays of numpy or torch become Python's, lists become tuples.

    Raises ScheduleError with all problems at once; sets that are not nested leave holes in a KV
    cache and are refused with the position and the layer.
    """

    def __post_init__(self) -> None:
        for field in fields(self):
            value = plain(getattr(self, field.name))
            if isinstance(value, list | tuple):
                value = tuple(map(plain, value))
            object.__setattr__(self, field.name, value)
        if problems := schedule_problems(self):
            raise ScheduleError("exit schedule", *problems)
        advice = PLACEMENTS[self.placement].hole_advice
        if holes := [*prompt_holes(self.prompt_plans), *generated_holes(self.segments)]:
            problems = [
                f"{hole}: a hole in that layer's KV cache; allowed: sets of layers that only "
                f"shrink{advice and f'; {advice}'}"
                for hole in holes[:MOST_PROBLEMS]
            ]
            raise ScheduleError("exit schedule", *few(problems, len(holes)))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.to_document().items())
        return f"ExitSchedule({values})"

    @classmethod
    def full(cls, num_layers: int) -> ExitSchedule:
        """Return the schedule that runs all layers for every token."""
        return cls(**full_arguments(num_layers))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> ExitSchedule:
        """Build a schedule from its JSON object; unknown and missing keys are refused."""
        if not isinstance(document, Mapping):
            raise ScheduleError("exit schedule", f"is {shown(document)}; allowed: a JSON object")
        problems = unknown_keys(document)
        problems += [f"key {key!r} is missing" for key in _REQUIRED if key not in document]
        if problems:
            raise ScheduleError("exit schedule", *problems)
        return cls(**document)

    def to_document(self) -> dict[str, Any]:
        """Return the JSON object: fields and rule parameters; ``prompt`` only if not "full"."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.prompt == "full":
            del named["prompt"]
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in named.items()
            if value is not None
        }

    def changed(self, **changes: object) -> ExitSchedule:
        """Return this schedule with other fields; a rule that changes loses its parameter.

        >>> ExitSchedule.full(6).changed(min_exit_layer=4, horizon=9, decay="linear").budget(8)
        4
        """
        kept = self.to_document()
        for field, parameter in (
            ("decay", DECAYS[self.decay].parameter),
            ("placement", PLACEMENTS[self.placement].parameter),
        ):
            if field in changes and parameter:
                del kept[parameter]
        return ExitSchedule(**{**kept, **changes})

    @property
    def exits_early(self) -> bool:
        """True if every token runs the lowest layers, so that only upper ones are skipped."""
        return all(
            segment.plan.layers == tuple(range(len(segment.plan))) for segment in self.segments
        )

    @property
    def is_full(self) -> bool:
        """True if every token runs all layers."""
        return self.min_exit_layer == self.num_layers

    @property
    def lent_horizon(self) -> int | None:
        """The horizon for presets that name none; None if the depth is constant."""
        return None if self.decay == "constant" else self.horizon

    def budget(self, index: int) -> int:
        """Return how many layers generated token ``index`` ≥ 0 runs."""
        return len(self.plan(index))

    def plan(self, index: int) -> LayerPlan:
        """Look up the layers that generated token ``index`` ≥ 0 runs."""
        if index < 0:
            raise IndexError(f"generated index is {index}; allowed: 0 or more")
        return self.segments[bisect_right(self._starts, index) - 1].plan

    def layer_ranges(self, budgets: Iterable[int]) -> dict[int, LayerRanges]:
        """Return the layers that each budget runs, in prompts and in texts."""
        return {budget: self._plan_of(budget).ranges for budget in set(budgets)}

    @cached_property
    def full_plan(self) -> LayerPlan:
        """All layers: the plan of prompt tokens, or with ``prompt="decay"`` of the first one."""
        return LayerPlan(tuple(range(self.num_layers)))

    @cached_property
    def prompt_plans(self) -> tuple[LayerPlan, ...]:
        """The plans of prompt tokens, from the first token's, all layers, down to the last token's.

        One plan with ``prompt="full"``, else one per budget; short prompts skip some of them.
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

        Budgets never grow along the prompt, and their sets are nested. 12 layers, max 8, warm-up 1,
        5 tokens: layers 0 and 5–11 run 5 tokens, layer 4 runs 4 (budget 9 or more), 3 runs 3, 2
        runs 2, and layer 1, which needs the whole budget, 1.
        """
        needed = self._prompt_needs[layer]
        if self.prompt == "full" or needed == self.max_exit_layer:
            return length
        # round_half_up(L − fall·j/(P−1)) ≥ needed, solved for the largest j
        fall = self.num_layers - self.max_exit_layer
        last = (2 * (self.num_layers - needed) + 1) * (length - 1) // (2 * fall)
        return min(length, last + 1)

    def active_lengths(self, prompt_length: int, num_fed: int) -> list[int]:
        """Return, for each layer, how many tokens of one row run it: always the first ones.

        The row is a prompt and ``num_fed`` generated tokens that are fed back.
        """
        lengths = []
        for layer in range(self.num_layers):
            last = self.last_index(layer)
            steps = num_fed if last is None else min(num_fed, last + 1)
            lengths.append(self.prompt_prefix(layer, prompt_length) + steps)
        return lengths

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The runs of equal plans, in order; the last one never stops."""
        starts: list[tuple[int, LayerPlan]] = []
        plans: dict[int, LayerPlan] = {}  # by budget
        last = (self.horizon, self.min_exit_layer)
        for start, budget in (*budget_changes(self), last):
            if budget not in plans:
                plans[budget] = self._plan_of(budget)
            if not starts or starts[-1][1] != plans[budget]:
                starts.append((start, plans[budget]))
        stops = [*(start for start, _ in starts[1:]), None]
        return tuple(
            Segment(start, stop, plan) for (start, plan), stop in zip(starts, stops, strict=True)
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
        layers = 0
        for segment in self.segments:
            stop = count if segment.stop is None else min(count, segment.stop)
            layers += len(segment.plan) * max(0, stop - segment.start)
        return layers / count

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        """The first generated index of each segment."""
        return tuple(segment.start for segment in self.segments)

    @cached_property
    def _last_indices(self) -> tuple[int | None, ...]:
        """For each layer, ``last_index``: the end of the last segment that runs it."""
        last: list[int | None] = [-1] * self.num_layers
        for segment in self.segments:
            for layer in segment.plan.layers:
                last[layer] = None if segment.stop is None else segment.stop - 1
        return tuple(last)

    @cached_property
    def _prompt_needs(self) -> tuple[int, ...]:
        """For each layer, the smallest budget of a prompt token that runs it."""
        needs = [self.num_layers] * self.num_layers
        for plan in self.prompt_plans:  # from the deepest down
            for layer in plan:
                needs[layer] = len(plan)
        return tuple(needs)

    def _plan_of(self, budget: int) -> LayerPlan:
        return LayerPlan(layers_of(self, budget))


def full_arguments(num_layers: int) -> dict[str, Any]:
    """Return the arguments of the schedule that runs all layers for every token."""
    return {
        "num_layers": num_layers,
        "max_exit_layer": num_layers,
        "min_exit_layer": num_layers,
        "warmup_layers": 0,
        "horizon": 1,
        "decay": "constant",
    }
