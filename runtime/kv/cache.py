"""KV caches: those of prompts while they run, and the slots of a batch's rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from ...engines.errors import CapacityError
from ...engines.memory import Tensor
from .buffers import BufferPool, CachePair, pair_bytes
from .plans import Capacities, KVPlan, SlotMemory


class KVCache:
    """Holds the pairs of caches of prompts that run.

    The arrays belong to ``pool``; bindings to them must be dropped before ``close`` gives them
    back. As a context manager it closes on exit.
    """

    def __init__(self, pool: BufferPool, plan: KVPlan) -> None:
        self._pool = pool
        self._pairs: list[CachePair | None] = []
        with ExitStack() as on_failure:
            on_failure.callback(self.close)
            try:
                for index, (rows, capacity) in enumerate(plan.sizes):
                    user = f"prompt {index}"
                    self._pairs.append(
                        CachePair.acquire(pool, plan.layout, rows, capacity, user)
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

    def pair(self, index: int) -> tuple[Tensor, Tensor]:
        """Return key and value [rows, N, T, W] of a pair that has positions."""
        pair = self._pairs[index]
        assert pair is not None, f"pair {index} has no positions"
        return pair.key, pair.value

    def close(self) -> None:
        """Give all buffers back to the pool; idempotent."""
        for pair in self._pairs:
            if pair is not None:
                pair.release(self._pool)
        self._pairs.clear()


@dataclass
class _Slots:
    """A layer's reserved positions by row, the rows in its slots 0 … n-1, and its buffers."""

    reserved: dict[int, int] = field(default_factory=dict)  # row -> positions
    residents: list[int] = field(default_factory=list)  # rows by slot
    pair: CachePair | None = None


class SlotCache:
    """Keys and values of all rows that run, layer by layer.

    A layer's residents lie in its slots 0 … n-1, so that the layer is bound to the first n slots of
    one buffer. A row enters at the tail; when it leaves a layer, the last resident's positions move
    into the gap, in that layer alone. When rows are admitted, they reserve all that they will need.
    ``memory`` computes the size of buffers, which grow one layer at a time and are given back when
    a layer has no reservation left, unless the cache ``keeps`` them.

    Worked: rows 7, 8, 9 lie in slots 0, 1, 2 of layer 3; row 7 leaves it; then rows 9, 8 lie in
    slots 0, 1.

    ``pool`` owns the buffers.
    """

    def __init__(self, pool: BufferPool, memory: SlotMemory, *, keeps: bool = False) -> None:
        self.memory = memory
        self.layout = memory.layout
        self.limit = memory.limits.kv_bytes
        self.version = 0  # incremented when a row enters or leaves a layer or a buffer moves
        self.planned_bytes = 0  # maximum that a reservation needed at once, including growth
        self._pool = pool
        self._keeps = keeps
        self._layers = [_Slots() for _ in range(memory.num_cached)]
        self._lengths: dict[int, int] = {}  # row -> positions written

    def residents(self, layer: int) -> Sequence[int]:
        """Return the rows in the layer's slots, in order, as a live view."""
        return self._layers[layer].residents

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
        """Return True if rows of these capacities can be reserved in addition to all others.

        ``prompt_bytes`` is what their prompts take from the pool while they run.
        """
        return self.bytes_with(capacities, prompt_bytes) <= self.limit

    def bytes_with(self, capacities: Sequence[Capacities], prompt_bytes: int) -> int:
        """Return the most bytes in use once these rows are reserved, including growth."""
        total = growth = 0
        for layer, slots in enumerate(self._layers):
            new = [one[layer] for one in capacities if one[layer]]
            size = self._size([*slots.reserved.values(), *new], slots.pair)
            total += pair_bytes(self.layout, size)
            if slots.pair is not None and slots.pair.size != size:
                growth = max(growth, pair_bytes(self.layout, slots.pair.size))
        return total + max(growth, prompt_bytes)

    def reserve(self, capacities: Mapping[int, Capacities], prompt_bytes: int) -> None:
        """Reserve capacities, by row number, that `fits` accepted."""
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
        """Copy a row to others with equal reservations, in each layer where it resides."""
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
        held = min(length, slots.pair.size[1])  # a row about to leave the layer may be longer
        slots.pair.copy_row(self._pool, source, target, held)

    def _grow(self, layer: int) -> None:
        """Make the buffers large enough for what is reserved; residents keep their contents."""
        slots = self._layers[layer]
        size = self._size(slots.reserved.values(), slots.pair)
        if slots.pair is not None and slots.pair.size == size:
            return
        self.version += 1
        fills = self.memory.limits.capacity is None  # else T is the engines' capacity
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

    def _size(self, reserved: Iterable[int], pair: CachePair | None) -> tuple[int, int]:
        """Return rows and positions of buffers for what is reserved; they never shrink."""
        capacities = list(reserved)
        held_rows, held_positions = (0, 0) if pair is None else pair.size
        if not capacities:
            return (held_rows, held_positions) if self._keeps else (0, 0)
        rows, positions = self.memory.size(len(capacities), max(capacities))
        return max(rows, held_rows), max(positions, held_positions)
