"""The base class of placements, and their registry.

A rule's docstring says which part is a paper's and which is ours. L is the number of layers, w the
warm-up, b the budget; layers are 0 … L−1. Whatever the rule, b = L runs every layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from ....engines.registry import Registry
from ..fields import ScheduleFields
from ..rule import Rule

PLACEMENTS = Registry(
    "placement",
    {
        "top": "runtime.schedule.placements.ends:Top",
        "bottom": "runtime.schedule.placements.ends:Bottom",
        "unified": "runtime.schedule.placements.unified:Unified",
        "unified-nested": "runtime.schedule.placements.unified:UnifiedNested",
        "hierarchical": "runtime.schedule.placements.hierarchical:Hierarchical",
        "d3": "runtime.schedule.placements.d3:D3",
    },
    group="skipdec.placements",
    base="runtime.schedule.placements.placement:Placement",
)


class Placement(Rule, ABC):
    """One rule for the layers of a budget.

    ``hole_advice`` is what to do where its sets are not nested.
    """

    hole_advice: ClassVar[str] = ""

    def problems(self, schedule: ScheduleFields) -> list[str]:
        """Say what is wrong with the warm-up and the budgets.

        By default the top layer always runs, so the smallest budget is above the warm-up.
        """
        if schedule.min_exit_layer <= schedule.warmup_layers:
            return [
                f"min_exit_layer is {schedule.min_exit_layer}; allowed with placement "
                f"{schedule.placement}: above warmup_layers, {schedule.warmup_layers}"
            ]
        return []

    @abstractmethod
    def layers(self, schedule: ScheduleFields, budget: int) -> tuple[int, ...]:
        """Return the ``budget`` layers that run, lowest first."""
