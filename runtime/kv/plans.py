"""Plans of KV memory: what prompts and rows need in each layer.

Worked example (L=6, warm-up 1, budgets 6 4 3 3 2 2 ..., prompt of 10 tokens, max_tokens 8):
layers 1 and 2 run only in the prompt and share one scratch pair of capacity 10; layer 3 last runs
at generated index 0 and holds 10 + 1 positions; layer 4 last runs at index 2 and holds 10 + 3;
layers 0 and 5 always run and hold 10 + 7, since the last token is never fed back.

With ``prompt="decay"`` the prompt's last token runs 4 layers; layers 1 and 2 run its first 3 and 7
tokens, and the pair's capacity is 7. Caches have no holes: budgets never grow along a row, so a
layer that the last prompt token bypasses never runs again for that row and writes the scratch pair,
and a layer with a cache of its own runs the last prompt token and therefore all before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...engines.errors import CapacityError
from ..schedule import ExitSchedule
from .buffers import KVLayout, pair_bytes
from .limits import Limits, capacity_class, row_class

Capacities = tuple[int, ...]
"""Positions that a row takes in each layer's cache; 0 in a layer that only its prompt runs."""


@dataclass(frozen=True)
class KVPlan:
    """The rows and positions of the pairs of caches that prompts need while they run.

    A prompt in chunks has a pair for each layer, of 0 positions where none of its tokens runs.
    Other prompts, and scored texts, have one pair that layers write in turn, or none.
    """

    layout: KVLayout
    sizes: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        sizes = " ".join(f"{rows}x{positions}" for rows, positions in dict.fromkeys(self.sizes))
        return f"{self.nbytes:,} bytes in {self.layout.dtype} for rows and positions {sizes}"

    @property
    def nbytes(self) -> int:
        """The maximum number of bytes taken from the pool at once."""
        return sum(pair_bytes(self.layout, size) for size in self.sizes)


@dataclass(frozen=True)
class PromptRow:
    """A new row: its number, its prompt, and the KV positions that it reserves per layer.

    ``copies`` are the numbers of the rows for the prompt's other completions. ``owner`` names whose
    prefixes the prompt may use, see `PrefixCache`.
    """

    row: int
    tokens: tuple[int, ...]
    schedule: ExitSchedule
    capacities: Capacities
    copies: tuple[int, ...] = ()
    owner: str = ""

    @property
    def rows(self) -> tuple[int, ...]:
        """The row's own number and those of its copies."""
        return (self.row, *self.copies)

    @property
    def runs_whole(self) -> bool:
        """True if every layer runs the whole prompt."""
        layers = range(self.schedule.num_layers)
        return all(self.active_length(layer) == len(self.tokens) for layer in layers)

    def active_length(self, layer: int) -> int:
        """Return how many of the prompt's tokens, from the first on, run ``layer``."""
        return self.schedule.prompt_prefix(layer, len(self.tokens))

    def keeps(self, layer: int) -> bool:
        """Return True if the row runs ``layer`` after its prompt."""
        return self.capacities[layer] > 0


@dataclass(frozen=True)
class SlotMemory:
    """Computes the KV memory that rows need in the slots of a batch; allocates nothing.

    Rows and positions of buffers are rounded up to few sizes, so that buffers seldom grow. With
    ``exact``, on the host, they are exactly what is reserved, which is cheapest if the longest
    request comes first. There are at least ``least_rows`` rows. With ``has_draft_layer`` rows have
    one more capacity, that of the draft layer after the model's ``num_layers``.
    """

    limits: Limits
    layout: KVLayout
    num_layers: int
    has_draft_layer: bool = False
    exact: bool = False
    least_rows: int = 1

    @property
    def num_cached(self) -> int:
        """The number of layers that have slots, including a draft layer."""
        return self.num_layers + self.has_draft_layer

    def size(self, rows: int, positions: int) -> tuple[int, int]:
        """Return a layer's rows and positions if ``rows`` rows reserve up to ``positions``."""
        if self.exact:
            return rows, positions
        rows = max(self.least_rows, row_class(rows, self.limits.max_rows))
        return rows, self.limits.capacity or capacity_class(positions, self.limits.max_positions)

    def prompt_row(
        self,
        tokens: tuple[int, ...],
        schedule: ExitSchedule,
        max_tokens: int,
        rows: range,
        owner: str = "",
    ) -> PromptRow:
        """Make the rows that continue a prompt by up to ``max_tokens`` tokens each.

        A draft layer holds entries for all of these tokens but the last, and none for the prompt.
        """
        num_fed = max(0, max_tokens - 1)  # the last token is never fed back
        lengths = schedule.active_lengths(len(tokens), num_fed)
        capacities = tuple(length if length > len(tokens) else 0 for length in lengths)
        if self.has_draft_layer:
            capacities += (num_fed,)
        return PromptRow(rows[0], tokens, schedule, capacities, tuple(rows[1:]), owner)

    def alone(self, row: PromptRow, *, in_chunks: bool) -> int:
        """Return the bytes that the row and its copies need if nothing else runs."""
        plan = self.chunk_plan(row) if in_chunks else self.scratch_plan([row])
        capacities = filter(None, row.capacities)
        sizes = (self.size(len(row.rows), capacity) for capacity in capacities)
        return sum(pair_bytes(self.layout, size) for size in sizes) + plan.nbytes

    def require_room(self, schedule: ExitSchedule) -> None:
        """Raise CapacityError if not even the shortest request fits."""
        most = self.limits.max_positions
        least, whole = (
            self.alone(self.prompt_row((0,), schedule, tokens, range(1)), in_chunks=False)
            for tokens in (1, max(1, most - 1))
        )
        if least > self.limits.kv_bytes:
            raise CapacityError(
                "kv_memory",
                f"is {self.limits.kv_bytes:,} bytes for this bundle; allowed: {least:,} or more, "
                f"for the shortest request; one of all {most:,} positions needs {whole:,}",
            )

    def scratch_plan(self, rows: Sequence[PromptRow]) -> KVPlan:
        """Plan the scratch pair of all layers that some row does not keep after its prompt."""
        layers = range(self.num_layers)
        # A scheduler plans ever larger groups, mostly of equal rows.
        kinds = {(id(row.schedule), len(row.tokens), row.capacities): row for row in rows}.values()
        longest = max(
            (
                max(row.active_length(layer) for row in kinds)
                for layer in layers
                if not all(row.keeps(layer) for row in kinds)
            ),
            default=0,
        )
        size = len(rows), self.limits.bucket or longest
        return KVPlan(self.layout, (size,) if longest else ())

    def chunk_plan(self, row: PromptRow) -> KVPlan:
        """Plan the caches of a prompt in chunks: every layer keeps all earlier positions."""
        lengths = (row.active_length(layer) for layer in range(self.num_layers))
        return KVPlan(self.layout, tuple((1, self.limits.bucket or length) for length in lengths))
