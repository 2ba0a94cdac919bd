"""KV caches: what a batch needs, caches of prompts that run, and slots of rows that come and go.

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

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from ...engines.errors import CapacityError
from ...engines.memory import Tensor
from ..schedule import ExitSchedule
from .buffers import BufferPool, CachePair, KVLayout, pair_bytes, pooled_size, size_class

Capacities = tuple[int, ...]
"""Positions that a row takes in each layer's cache; 0 in a layer that only its prompt runs."""


@dataclass(frozen=True)
class KVPlan:
    """Capacities of one batch's caches, in positions.

    ``capacities[l]`` is 0 for a layer that runs in the prompt only; one scratch pair of
    ``scratch_rows`` x ``scratch_capacity`` serves such layers. ``bucket`` is the static capacity
    of all engines that run the batch, where they have one.
    """

    layout: KVLayout
    rows: int
    capacities: Capacities
    scratch_rows: int = 0
    scratch_capacity: int = 0
    bucket: int | None = None

    def __str__(self) -> str:
        live = [capacity for capacity in self.capacities if capacity]
        return (
            f"{self.nbytes:,} bytes for {self.rows} rows, {len(live)} layers of up to "
            f"{max(live, default=0)} positions in {self.layout.dtype}, and {self.scratch_rows} "
            f"rows of {self.scratch_capacity} for the prompt"
        )

    @property
    def nbytes(self) -> int:
        """The largest number of bytes that the batch takes from the pool at once."""
        sizes = [(self.rows, capacity) for capacity in self.capacities if capacity]
        if self.scratch_capacity:
            sizes.append((self.scratch_rows, self.scratch_capacity))
        return 2 * sum(pooled_size(self.layout.nbytes(*size)) for size in sizes)


def plan_kv_cache(
    layout: KVLayout,
    schedule: ExitSchedule,
    prompt_lengths: Sequence[int],
    max_tokens: Sequence[int],
    *,
    scratch_rows: int,
) -> KVPlan:
    """Plan the caches of a batch whose row r holds prompt_lengths[r] + up to max_tokens[r] tokens.

    ``scratch_rows``: the most rows of one prefill call.
    """
    capacities = []
    for layer in range(schedule.num_layers):
        last = schedule.last_index(layer)
        fed = [max(0, tokens - 1) for tokens in max_tokens]  # the last token is never fed back
        if last is not None:
            fed = [min(steps, last + 1) for steps in fed]
        needed = max(length + steps for length, steps in zip(prompt_lengths, fed, strict=True))
        capacities.append(needed if any(fed) else 0)
    longest_prompt = max(prompt_lengths)
    longest_prefix = max(  # of a prompt's tokens in a layer without a cache of its own
        (
            schedule.prompt_prefix(layer, longest_prompt)
            for layer, capacity in enumerate(capacities)
            if not capacity
        ),
        default=0,
    )
    return KVPlan(
        layout=layout,
        rows=len(prompt_lengths),
        capacities=tuple(capacities),
        scratch_rows=scratch_rows if longest_prefix else 0,
        scratch_capacity=longest_prefix,
    )


class KVCache:
    """Holds the caches of prompts that run: one per layer, or a scratch pair for all in turn.

    The arrays belong to ``pool``; bindings to them must be dropped before ``close`` gives them
    back. As a context manager it closes on exit.
    """

    def __init__(self, pool: BufferPool, plan: KVPlan) -> None:
        self.plan = plan
        self._pool = pool
        self._pairs: list[CachePair | None] = []
        self._scratch: CachePair | None = None
        layout, size = plan.layout, (plan.scratch_rows, plan.scratch_capacity)
        with ExitStack() as on_failure:
            on_failure.callback(self.close)
            try:
                if plan.scratch_capacity:
                    self._scratch = CachePair.acquire(pool, layout, *size, "scratch")
                for layer, capacity in enumerate(plan.capacities):
                    user = f"prompt {layer}"
                    self._pairs.append(
                        CachePair.acquire(pool, layout, plan.rows, capacity, user)
                        if capacity
                        else None
                    )
            except CapacityError as error:
                raise CapacityError(
                    error.subject, *error.problems, f"the batch's plan is {plan}"
                ) from error
            on_failure.pop_all()

    def __enter__(self) -> KVCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def rows(self, layer: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return key and value [stop - start, N, T, W] of a layer as contiguous views."""
        pair = self._pairs[layer]
        assert pair is not None, f"layer {layer} writes the scratch pair"
        return pair.key[start:stop], pair.value[start:stop]

    def scratch(self, rows: int) -> tuple[Tensor, Tensor]:
        """Return key and value [rows, N, T, W] that prompt-only layers write in turn."""
        assert self._scratch is not None, "no layer is prompt-only"
        return self._scratch.key[:rows], self._scratch.value[:rows]

    def close(self) -> None:
        """Give all buffers back to the pool; idempotent."""
        for pair in (self._scratch, *self._pairs):
            if pair is not None:
                pair.release(self._pool)
        self._scratch = None
        self._pairs.clear()


def row_class(rows: int, most: int) -> int:
    """Round up to 1, 2, 4, 8, … rows, at most ``most``, so that buffers seldom grow."""
    return min(1 << (rows - 1).bit_length(), most)


def capacity_class(positions: int, most: int) -> int:
    """Round up to four sizes per octave from 16 positions on, at most ``most``."""
    return min(size_class(positions, 16), most)


@dataclass(frozen=True)
class SlotSizes:
    """Computes the size of a layer's buffers from the rows and positions that are reserved.

    Sizes are rounded up to classes, so that buffers seldom grow; ``exact`` ones are what is
    reserved, which is cheapest when the longest request comes first. With a ``capacity`` every row
    has that many positions, and there are at least ``least_rows`` rows.
    """

    most_rows: int
    most_positions: int
    exact: bool = False
    capacity: int | None = None
    least_rows: int = 1

    def of(self, rows: int, positions: int) -> tuple[int, int]:
        """Return the buffers' rows and positions where ``rows`` reserve up to ``positions``."""
        if self.exact:
            return rows, positions
        rows = max(self.least_rows, row_class(rows, self.most_rows))
        return rows, self.capacity or capacity_class(positions, self.most_positions)


@dataclass
class _Slots:
    """One layer: reserved positions by row, the rows in slots 0 … n-1, and the buffers."""

    reserved: dict[int, int] = field(default_factory=dict)  # row -> positions
    residents: list[int] = field(default_factory=list)  # rows by slot
    pair: CachePair | None = None
    generation: int = 0  # incremented when buffers are reallocated


class SlotCache:
    """Keys and values of all rows that run, layer by layer.

    A layer's residents lie in its slots 0 … n-1, so that the first n of one buffer are what the
    layer is bound to. A row enters at the tail; when it leaves a layer, the last resident's
    positions move into the gap, in that layer alone. Rows reserve all that they will need when they
    are admitted. ``sizes`` computes the size of buffers, which grow one layer at a time and are
    given back when a layer has no reservation left, unless the cache ``keeps`` them.

    Worked: rows 7, 8, 9 lie in slots 0, 1, 2 of layer 3; row 7 leaves it; then rows 9, 8 lie in
    slots 0, 1.

    ``pool`` owns the memory; ``limit`` bytes of it may be in use.
    """

    def __init__(
        self,
        pool: BufferPool,
        layout: KVLayout,
        *,
        num_layers: int,
        limit: int,
        sizes: SlotSizes,
        keeps: bool = False,
    ) -> None:
        self.layout = layout
        self.limit = limit
        self.version = 0  # incremented when a row enters or leaves a layer or a buffer moves
        self.planned_bytes = 0  # maximum that a reservation needed at once, growing included
        self._pool = pool
        self.sizes = sizes
        self._keeps = keeps
        self._layers = [_Slots() for _ in range(num_layers)]
        self._lengths: dict[int, int] = {}  # row -> positions written

    def residents(self, layer: int) -> Sequence[int]:
        """Return the rows in the layer's slots, in order, as a live view."""
        return self._layers[layer].residents

    def generation(self, layer: int) -> int:
        """Return a number that changes with the layer's buffers; older bindings are invalid."""
        return self._layers[layer].generation

    @property
    def num_layers(self) -> int:
        """The number of layers, a draft layer included."""
        return len(self._layers)

    @property
    def num_rows(self) -> int:
        """The number of rows whose prompts have run."""
        return len(self._lengths)

    @property
    def idle_bytes(self) -> int:
        """Bytes of buffers that are kept without a reservation."""
        idle = (slots.pair for slots in self._layers if slots.pair and not slots.reserved)
        return sum(pair_bytes(self.layout, pair.size) for pair in idle)

    def first(self, layer: int, rows: int) -> tuple[Tensor, Tensor]:
        """Return key and value [rows, N, T, W] of the layer's first slots as contiguous views."""
        return self._slots(layer, 0, rows)

    def fits(self, capacities: Sequence[Capacities], prompt_bytes: int) -> bool:
        """Return True if rows of these capacities can be reserved together, beside those that are.

        ``prompt_bytes`` is what their prompts take from the pool besides, while they run.
        """
        return self.bytes_with(capacities, prompt_bytes) <= self.limit

    def bytes_with(self, capacities: Sequence[Capacities], prompt_bytes: int) -> int:
        """Return the bytes in use at most once these rows are reserved, growing included."""
        total = growth = 0
        for layer, slots in enumerate(self._layers):
            new = [one[layer] for one in capacities if one[layer]]
            size = self._size([*slots.reserved.values(), *new], slots.pair)
            total += pair_bytes(self.layout, size)
            if slots.pair is not None and slots.pair.size != size:
                growth = max(growth, pair_bytes(self.layout, slots.pair.size))
        return total + max(growth, prompt_bytes)

    def reserve(self, capacities: Mapping[int, Capacities], prompt_bytes: int) -> None:
        """Reserve for rows, by their numbers, what `fits` accepted."""
        planned = self.bytes_with(list(capacities.values()), prompt_bytes)
        self.planned_bytes = max(self.planned_bytes, planned)
        for layer, slots in enumerate(self._layers):
            new = {row: one[layer] for row, one in capacities.items() if one[layer]}
            if new:
                slots.reserved |= new
                self._grow(layer)

    def enter(self, layer: int, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Give rows with a reservation the layer's next slots; return views [rows, N, T, W]."""
        self.version += 1
        residents = self._layers[layer].residents
        start = len(residents)
        residents.extend(rows)
        return self._slots(layer, start, start + len(rows))

    def length(self, row: int) -> int:
        """Return how many positions of a row are written."""
        return self._lengths[row]

    def reserved(self, row: int, layer: int) -> int:
        """Return how many positions the row has reserved in the layer; 0 once it has left."""
        return self._layers[layer].reserved.get(row, 0)

    def set_lengths(self, rows: Sequence[int], lengths: Iterable[int]) -> None:
        """Set how many positions of each row are written, in each layer where it resides."""
        self._lengths.update(zip(rows, lengths, strict=True))

    def leave(self, row: int, layers: Iterable[int]) -> None:
        """Take the row out of ``layers`` for good; it need not be in all of them."""
        self.version += 1
        for layer in layers:
            slots = self._layers[layer]
            slots.reserved.pop(row, None)
            if row in slots.residents:
                self._close_gap(slots, slots.residents.index(row))
            if not slots.reserved and not self._keeps:
                self._give_back(slots)

    def release(self, row: int) -> None:
        """Take a row that has ended out of all layers."""
        self.leave(row, range(len(self._layers)))
        self._lengths.pop(row, None)

    def fork(self, row: int, copies: Sequence[int]) -> None:
        """Copy a row to others that have reserved as much, in each layer where it resides."""
        length = self._lengths[row]
        for layer, slots in enumerate(self._layers):
            if row not in slots.residents:
                continue
            source, start = slots.residents.index(row), len(slots.residents)
            self.enter(layer, copies)
            for target in range(start, start + len(copies)):
                self._copy(slots, source, target, length)
        for copy in copies:
            self._lengths[copy] = length

    def close(self) -> None:
        """Give all buffers back to the pool; idempotent."""
        self.version += 1
        for slots in self._layers:
            slots.reserved.clear()
            slots.residents.clear()
            self._give_back(slots)
        self._lengths.clear()

    def _slots(self, layer: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        pair = self._layers[layer].pair
        assert pair is not None, f"nothing is reserved in layer {layer}"
        return pair.key[start:stop], pair.value[start:stop]

    def _close_gap(self, slots: _Slots, gap: int) -> None:
        last = slots.residents.pop()
        if gap < len(slots.residents):
            self._copy(slots, len(slots.residents), gap, self._lengths[last])
            slots.residents[gap] = last

    def _copy(self, slots: _Slots, source: int, target: int, length: int) -> None:
        assert slots.pair is not None
        held = min(length, slots.pair.size[1])  # a row that is about to leave may be longer
        slots.pair.copy_row(self._pool, source, target, held)

    def _grow(self, layer: int) -> None:
        """Make the buffers large enough for what is reserved; residents keep their contents."""
        slots = self._layers[layer]
        size = self._size(slots.reserved.values(), slots.pair)
        if slots.pair is not None and slots.pair.size == size:
            return
        self.version += 1
        fills = self.sizes.capacity is None  # else it is that of the engines
        pair = CachePair.acquire(self._pool, self.layout, *size, f"layer {layer}", fills=fills)
        if slots.pair is not None:
            for slot, row in enumerate(slots.residents):
                held = min(self._lengths[row], slots.pair.size[1])
                for old, new in ((slots.pair.key, pair.key), (slots.pair.value, pair.value)):
                    self._pool.memory.copy_between((new, slot), (old, slot), held)
            self._give_back(slots)
        slots.pair = pair

    def _give_back(self, slots: _Slots) -> None:
        if slots.pair is None:
            return
        slots.pair.release(self._pool)
        slots.pair = None
        slots.generation += 1

    def _size(self, reserved: Iterable[int], pair: CachePair | None) -> tuple[int, int]:
        """Return rows and positions of buffers for what is reserved, never below the present."""
        capacities = list(reserved)
        held_rows, held_positions = (0, 0) if pair is None else pair.size
        if not capacities:
            return (held_rows, held_positions) if self._keeps else (0, 0)
        rows, positions = self.sizes.of(len(capacities), max(capacities))
        return max(rows, held_rows), max(positions, held_positions)
