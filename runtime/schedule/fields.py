"""The fields of a schedule, which decays, placements and checks read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ScheduleFields:
    """Bounds, the names of rules and their parameters, unchecked.

    The last six fields are parameters, each of one decay or placement; None without it.
    """

    num_layers: int
    max_exit_layer: int
    min_exit_layer: int
    warmup_layers: int = 1
    horizon: int
    decay: str = "linear"
    placement: str = "top"
    prompt: str = "full"
    power: float | None = None
    rate: float | None = None
    steps: int | None = None
    table: tuple[int, ...] | None = None
    alpha: float | None = None
    tail: int | None = None

    def value_of(self, parameter: str | None) -> Any:  # noqa: ANN401  (the rule knows its type)
        """Return the value of a rule's ``parameter``; None if it has none."""
        return parameter and getattr(self, parameter)
