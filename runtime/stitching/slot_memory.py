"""The KV memory that rows need: of their prompts while these run, and in slots if alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..kv.cache import KVPlan
from ..kv.layout import KVLayout
from ..kv.pair import pair_bytes
from ..kv.reservation import SlotSizes
from .prompt_rows import PromptRow, num_keeping


@dataclass(frozen=True)
class SlotMemory:
    """How much KV memory rows need in slots of these sizes; known without any memory.

    ``bucket``: positions of a prompt's caches where they are static in the engines.
    """

    layout: KVLayout
    num_layers: int
    sizes: SlotSizes
    bucket: int | None = None

    def alone(self, row: PromptRow, *, in_chunks: bool) -> int:
        """Return the bytes that the row and its copies need if nothing else runs."""
        plan = self.chunk_plan(row) if in_chunks else self.scratch_plan([row])
        capacities = filter(None, row.reservation.capacities)
        sizes = (self.sizes.of(len(row.rows), capacity) for capacity in capacities)
        return sum(pair_bytes(self.layout, size) for size in sizes) + plan.nbytes

    def scratch_plan(self, rows: Sequence[PromptRow]) -> KVPlan:
        """Return the one pair for the layers that not all rows keep, while their prompts run."""
        layers = range(self.num_layers)
        longest = max(
            (
                max(row.active_length(layer) for row in rows)
                for layer in layers
                if num_keeping(rows, layer) < len(rows)
            ),
            default=0,
        )
        return KVPlan(
            self.layout,
            rows=len(rows),
            capacities=(0,) * len(layers),
            scratch_rows=len(rows) if longest else 0,
            scratch_capacity=(self.bucket or longest) if longest else 0,
        )

    def chunk_plan(self, row: PromptRow) -> KVPlan:
        """Return the caches of a prompt in chunks: all layers need what they have seen."""
        return KVPlan(
            self.layout,
            rows=1,
            capacities=tuple(
                self.bucket or row.active_length(layer) for layer in range(self.num_layers)
            ),
        )
