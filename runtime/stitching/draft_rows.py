"""The rows that take part in a draft step: those that draft, and others in the layers' slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from ...engines.errors import UsageError
from ..kv.cache import SlotCache
from ..schedule import LayerPlan
from .protocol import DraftRow, StepRow


@dataclass(frozen=True)
class DraftRows:
    """The rows that a draft step of ``plan`` runs, until a row enters or leaves a layer.

    ``numbers`` are those of the rows that draft, in the given order. ``residents`` are all rows in
    the slots of each layer of the plan, lowest layer first. ``ends`` has the number of positions
    that each drafting row holds in all of these layers.
    """

    plan: LayerPlan
    numbers: list[int]
    residents: dict[int, list[int]]
    ends: list[int]

    @classmethod
    def of(cls, cache: SlotCache, rows: Sequence[DraftRow], plan: LayerPlan) -> Self:
        """Find the rows. Raises UsageError for one that has left a layer of ``plan``."""
        numbers = [row.row for row in rows]
        residents = {layer: list(cache.residents(layer)) for layer in plan}
        for layer, inside in residents.items():
            for number in numbers:
                if number not in inside:
                    raise UsageError(f"row {number}", f"drafts with layer {layer}, which it left")
        ends = [min(cache.reserved(number, layer) for layer in plan) for number in numbers]
        return cls(plan, numbers, residents, ends)

    @cached_property
    def others(self) -> list[int]:
        """The rows in these slots that do not draft."""
        inside = dict.fromkeys(row for held in self.residents.values() for row in held)
        return [row for row in inside if row not in self.numbers]

    def fed(self, cache: SlotCache, rows: Sequence[DraftRow]) -> list[StepRow]:
        """Return what the step feeds: the tokens of ``rows``, then token 0 for each other row."""
        plans = (self.plan,)
        drafted = [StepRow(row.row, (row.token,), row.position, plans) for row in rows]
        return drafted + [StepRow(row, (0,), cache.length(row), plans) for row in self.others]

    def require_positions(self, cache: SlotCache, rows: Sequence[DraftRow]) -> None:
        """Raise UsageError for a token whose position is already written, or not reserved."""
        for row, end in zip(rows, self.ends, strict=True):
            if not cache.length(row.row) <= row.position < end:
                raise UsageError(
                    f"row {row.row}",
                    f"drafts at position {row.position}; allowed: "
                    f"{cache.length(row.row)} to {end - 1}",
                )
