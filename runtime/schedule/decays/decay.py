"""What every decay is, and their registry.

A decay maps the index i of a generated token, 0 ≤ i < horizon, to a budget of layers. Values are
rounded half up in exact arithmetic, so two machines always agree on a plan.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
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
    """Whether the parameters are the budgets themselves, so that no exit layers may vary."""

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> dict[str, object]:
        """Return the fields that a schedule's text may leave out, because ``values`` say them.

        ``values`` are what the text does say, unchecked.
        """
        return {}

    @abstractmethod
    def budget(self, schedule: ScheduleFields, index: int) -> int:
        """Return the layers that generated token ``index`` runs, 0 ≤ index < horizon."""
