"""The base class of decays, and their registry.

A decay maps the index i of a generated token, 0 ≤ i < horizon, to a budget of layers. Values are
rounded half up in exact arithmetic, so two machines always agree on a plan.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from ....engines.registry import Registry
from ..fields import ScheduleFields
from ..rule import Rule

DECAYS = Registry(
    "decay",
    {
        "linear": "runtime.schedule.decays.curves:Linear",
        "cosine": "runtime.schedule.decays.curves:Cosine",
        "power": "runtime.schedule.decays.curves:Power",
        "exponential": "runtime.schedule.decays.curves:Exponential",
        "step": "runtime.schedule.decays.levels:Step",
        "constant": "runtime.schedule.decays.levels:Constant",
        "table": "runtime.schedule.decays.levels:Table",
        "d3": "runtime.schedule.decays.d3:D3",
    },
    group="skipdec.decays",
    base="runtime.schedule.decays.decay:Decay",
)


class Decay(Rule, ABC):
    """One rule for budgets."""

    lists_budgets: ClassVar[bool] = False
    """True if the parameters are the budgets themselves, so that exit layers can't vary."""

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> dict[str, object]:
        """Return the fields that a schedule's text may leave out, because ``values`` say them.

        ``values`` are what the text does say, unchecked.
        """
        return {}

    def changes(self, schedule: ScheduleFields) -> Iterator[tuple[int, int]]:
        """Yield (index, budget) of token 0 and of each token that differs from the one before.

        This walks the whole horizon; a decay that never grows is a `FallingDecay`.
        """
        before = None
        for index in range(schedule.horizon):
            budget = self.budget(schedule, index)
            if budget != before:
                yield index, budget
            before = budget

    @abstractmethod
    def budget(self, schedule: ScheduleFields, index: int) -> int:
        """Return the layers that generated token ``index`` runs, 0 ≤ index < horizon."""


class FallingDecay(Decay, ABC):
    """A decay whose budget never grows from one token to the next.

    Its changes are found by halving the horizon where the two ends differ, so that the cost depends
    on the number of layers, not on the horizon.
    """

    def changes(self, schedule: ScheduleFields) -> Iterator[tuple[int, int]]:
        """Yield what `Decay.changes` does, from few budgets."""
        last = schedule.horizon - 1
        first_budget = self.budget(schedule, 0)
        yield 0, first_budget
        last_budget = self.budget(schedule, last)
        yield from self._changes_within(schedule, (0, first_budget), (last, last_budget))

    def _changes_within(
        self, schedule: ScheduleFields, low: tuple[int, int], high: tuple[int, int]
    ) -> Iterator[tuple[int, int]]:
        """Yield the changes after ``low`` up to ``high``, both (index, budget)."""
        if low[1] == high[1]:
            return
        if high[0] - low[0] == 1:
            yield high
            return
        index = (low[0] + high[0]) // 2
        middle = index, self.budget(schedule, index)
        yield from self._changes_within(schedule, low, middle)
        yield from self._changes_within(schedule, middle, high)
