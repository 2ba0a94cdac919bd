"""The decay d3."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeGuard

from ....engines.errors import shown
from ....engines.manifest import MAX_LAYERS
from ..fields import MAX_HORIZON, ScheduleFields, snap
from .decay import FallingDecay


@dataclass(frozen=True)
class D3(FallingDecay):
    """⌊max·αⁱ⌋, never below min (D3, arXiv 2503.08524; its abstract: ⌊L·αⁱ⌋ layers for token i).

    The paper's with max = L; its core layers belong to the placement d3, which takes any decay.
    Ours: max below L, the bound min (it is the core where nothing else runs), and a horizon: from
    there on, min. Texts that name none have the first token at which the floor is at min.

    L=12, max=12, min=5, α=0.9: the curve is 12, 10.8, 9.72, 8.75, 7.87, 7.09, 6.38, 5.74, so
    12 10 9 8 7 7 6 5, a horizon of 8.
    """

    searched: ClassVar[tuple[str, ...]] = ()

    alpha: float

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> dict[str, object]:
        """The horizon at which the floor is at min; 1 where ExitSchedule will find a problem."""
        alpha = values.get("alpha")
        smallest, largest = values.get("min_exit_layer", 0), values.get("max_exit_layer", 0)
        if not _is_base(alpha) or not 0 < smallest <= largest <= MAX_LAYERS:
            return {"horizon": 1}
        return {"horizon": min(d3_horizon(largest, smallest, alpha), MAX_HORIZON)}

    def problems(self, schedule: ScheduleFields) -> list[str]:
        """``alpha`` is a number between 0 and 1."""
        if _is_base(self.alpha):
            return []
        return [
            f"alpha is {shown(self.alpha)}; decay d3 needs a number above 0 and below 1, e.g. 0.98"
        ]

    def budget(self, schedule: ScheduleFields, index: int) -> int:
        """The floor, at least min."""
        return max(schedule.min_exit_layer, _floor(schedule.max_exit_layer, self.alpha, index))


def d3_horizon(largest: int, smallest: int, alpha: float) -> int:
    """Return how many tokens ⌊largest·αⁱ⌋ takes to be at ``smallest`` or below, that one included.

    >>> d3_horizon(12, 5, 0.9)
    8
    """
    steps = math.log(smallest + 1) - math.log(largest) if largest > smallest else 0.0
    index = max(0, math.floor(steps / math.log(alpha)) - 1)  # near, and never beyond
    while _floor(largest, alpha, index) > smallest:
        index += 1
    return index + 1


def _is_base(alpha: object) -> TypeGuard[float]:
    return isinstance(alpha, float) and 0 < alpha < 1


def _floor(largest: int, alpha: float, index: int) -> int:
    """Snapped before the floor: 10·0.7 is 7, not 6.99…."""
    return math.floor(snap(largest * alpha**index))
