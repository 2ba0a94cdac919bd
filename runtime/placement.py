"""Which layers a budget runs: the placements of an exit schedule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from ..engines.registry import Registry

if TYPE_CHECKING:
    from .schedule import ExitSchedule

PLACEMENTS = Registry(
    "placement", {"top": "runtime.placement:Top", "bottom": "runtime.placement:Bottom"}
)


class Placement(ABC):
    """One rule for the layers of a budget."""

    @classmethod
    @abstractmethod
    def problems(cls, schedule: ExitSchedule) -> list[str]:
        """Return why ``schedule`` does not fit this placement: warm-up against the budgets."""

    @classmethod
    @abstractmethod
    def layers(cls, num_layers: int, warmup_layers: int, budget: int) -> tuple[int, ...]:
        """Return the ``budget`` layers that run, lowest first."""


class Top(Placement):
    """Warm-up layers, then the top ones (SkipDecode, arXiv 2307.02628).

    L=6, warm-up 1, budget 3: layers 0, 4, 5; lower-to-middle layers are bypassed.
    """

    @classmethod
    def problems(cls, schedule: ExitSchedule) -> list[str]:
        """The top layer always runs: the smallest budget is above the warm-up."""
        if schedule.min_exit_layer <= schedule.warmup_layers:
            return [
                f"min_exit_layer is {schedule.min_exit_layer}; allowed with placement top: above "
                f"warmup_layers, {schedule.warmup_layers}"
            ]
        return []

    @classmethod
    def layers(cls, num_layers: int, warmup_layers: int, budget: int) -> tuple[int, ...]:
        """{0..w-1} ∪ {L-(b-w)..L-1}."""
        top = num_layers - (budget - warmup_layers)
        return (*range(warmup_layers), *range(top, num_layers))


class Bottom(Placement):
    """The lowest layers (early termination, the baseline). L=6, budget 3: layers 0, 1, 2."""

    @classmethod
    def problems(cls, schedule: ExitSchedule) -> list[str]:
        """Any budget from 1; warm-up layers are among the lowest anyway."""
        if schedule.min_exit_layer < 1:
            return [f"min_exit_layer is {schedule.min_exit_layer}; allowed: 1 or more"]
        return []

    @classmethod
    def layers(cls, num_layers: int, warmup_layers: int, budget: int) -> tuple[int, ...]:
        """{0..b-1}."""
        return tuple(range(budget))
