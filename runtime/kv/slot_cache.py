"""SlotCache: keys and values of rows that come and go, each in the layers that it still runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...engines.memory import Tensor
from .buffers import BufferPool, CachePair, KVLayout, pair_bytes
from .cache import Reservation, SlotSizes


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
    def idle_bytes(self) -> int:
        """Bytes of buffers that are kept without a reservation."""
        idle = (slots.pair for slots in self._layers if slots.pair and not slots.reserved)
        return sum(self._pair_bytes(pair.size) for pair in idle)

    def first(self, layer: int, rows: int) -> tuple[Tensor, Tensor]:
        """Return key and value [rows, N, T, W] of the layer's first slots as contiguous views."""
        return self._slots(layer, 0, rows)

    def fits(self, reservations: Sequence[Reservation], prompt_bytes: int) -> bool:
        """Return True if these rows can be reserved together, beside those that are.

        ``prompt_bytes`` is what their prompts take from the pool besides, while they run.
        """
        return self.bytes_with(reservations, prompt_bytes) <= self.limit

    def bytes_with(self, reservations: Sequence[Reservation], prompt_bytes: int) -> int:
        """Return the bytes in use at most once these rows are reserved, growing included."""
        total = growth = 0
        for layer, slots in enumerate(self._layers):
            new = [one.capacities[layer] for one in reservations if one.capacities[layer]]
            size = self._size([*slots.reserved.values(), *new], slots.pair)
            total += self._pair_bytes(size)
            if slots.pair is not None and slots.pair.size != size:
                growth = max(growth, self._pair_bytes(slots.pair.size))
        return total + max(growth, prompt_bytes)

    def reserve(self, reservations: Mapping[int, Reservation], prompt_bytes: int) -> None:
        """Reserve for rows, by their numbers, what `fits` accepted."""
        planned = self.bytes_with(list(reservations.values()), prompt_bytes)
        self.planned_bytes = max(self.planned_bytes, planned)
        for layer, slots in enumerate(self._layers):
            new = {
                row: one.capacities[layer]
                for row, one in reservations.items()
                if one.capacities[layer]
            }
            if not new:
                continue
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
        pair = CachePair.acquire(self._pool, self.layout, *size, f"layer {layer}")
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

    def _pair_bytes(self, size: tuple[int, int]) -> int:
        return pair_bytes(self.layout, size)
