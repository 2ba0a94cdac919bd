"""Rows at depths of their own on the host: hidden states lie together, layers take theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from ...engines.backends.session import Binding
from ...engines.memory import Array, Tensor
from ..kv.cache import KVCache, KVPlan
from ..kv.pool import BufferPool
from ..kv.reservation import Reservation
from ..kv.slots import SlotCache
from ..schedule import LayerPlan
from ..tokens.logits import HostLogits
from .host import HostStitcher, StepBuffers
from .slots import PromptRow, SlotStitcher, StepRow
from .stitcher import bind, cache_tensors


class HostSlotStitcher(SlotStitcher):
    """`SlotStitcher` on the engines of a `HostStitcher`, which stay its own.

    A step's rows stand in the order of the top layer's slots, since all of them run it. A layer
    whose slots have another order, or fewer rows, works on a second set of buffers: its rows are
    gathered there with their positions, and scattered back behind the last layer of that order.
    """

    def __init__(self, engines: HostStitcher, cache: SlotCache, pool: BufferPool) -> None:
        self._loaded: HostStitcher | None = engines
        self._cache = cache
        self._pool = pool
        self._all = engines.buffers
        max_rows = len(self._all.row_positions)
        self._part = StepBuffers(engines.embed.spec, engines.head.spec, max_rows)
        self._plans: dict[int, LayerPlan] = {}  # row -> of its last step
        self._ends: dict[int, tuple[Binding, Binding]] = {}  # rows -> embed and head
        self._bound: dict[tuple[int, int, bool], tuple[int, Binding]] = {}
        self._chunked: _ChunkedPrompt | None = None
        self._route: _Route | None = None  # of the last step

    @property
    def _engines(self) -> HostStitcher:
        assert self._loaded is not None, "closed"
        return self._loaded

    @property
    def reserved_bytes(self) -> int:
        """See SlotStitcher."""
        return self._pool.in_use_bytes

    @property
    def planned_bytes(self) -> int:
        """See SlotStitcher."""
        return self._cache.planned_bytes

    def fits(self, rows: Sequence[PromptRow]) -> bool:
        """See SlotStitcher."""
        return self._cache.fits(_reservations(rows), self._scratch_plan(rows).nbytes)

    def fits_in_chunks(self, row: PromptRow) -> bool:
        """See SlotStitcher."""
        return self._cache.fits(_reservations([row]), self._chunk_plan(row).nbytes)

    def bytes_alone(self, row: PromptRow, *, in_chunks: bool) -> int:
        """See SlotStitcher."""
        plan = self._chunk_plan(row) if in_chunks else self._scratch_plan([row])
        return self._cache.bytes_alone(_reservations([row])) + plan.nbytes

    def prefill(self, rows: Sequence[PromptRow]) -> Array:
        """See SlotStitcher.

        Where all rows keep a layer, it writes their slots; else a scratch pair, from which the
        rows that do keep it are copied.
        """
        self._reserve(rows, self._scratch_plan(rows))
        active = [
            [row.active_length(layer) for row in rows] for layer in range(len(self._engines.layers))
        ]
        with KVCache(self._pool, self._scratch_plan(rows)) as scratch:

            def caches(layer: int) -> tuple[Tensor, Tensor]:
                if _keepers(rows, layer) == len(rows):
                    return self._cache.enter(layer, [row.row for row in rows])
                return scratch.scratch(len(rows))

            def copy_kept(layer: int) -> None:
                if 0 < _keepers(rows, layer) < len(rows):
                    self._copy_kept(rows, layer, scratch.scratch(len(rows)))

            prompts = [row.tokens for row in rows]
            logits = self._engines.prompts.prefill(prompts, active, caches, copy_kept)
        self._begin(rows)
        return logits

    def begin_chunks(self, row: PromptRow) -> None:
        """See SlotStitcher."""
        assert self._chunked is None, "one prompt at a time"
        self._reserve([row], self._chunk_plan(row))
        self._chunked = _ChunkedPrompt(row, KVCache(self._pool, self._chunk_plan(row)))

    def chunk(self, stop: int) -> Array | None:
        """See SlotStitcher."""
        chunked = self._chunked
        assert chunked is not None, "begin_chunks first"
        row, cache = chunked.row, chunked.cache
        layers = range(len(self._engines.layers))
        logits = self._engines.prompts.chunk(
            row.tokens[chunked.done : stop],
            chunked.done,
            [row.active_length(layer) for layer in layers],
            lambda layer: cache.rows(layer, 0, 1),
            is_last=stop == len(row.tokens),
        )
        chunked.done = stop
        if logits is not None:
            for layer in layers:
                if row.reservation.capacities[layer]:
                    self._copy_kept([row], layer, cache.rows(layer, 0, 1))
            self._drop_chunked()
            self._begin([row])
        return logits

    def step(self, rows: Sequence[StepRow]) -> HostLogits:
        """See SlotStitcher."""
        for row in rows:
            self._leave_bypassed(row)
        numbers = [row.row for row in rows]
        route = self._route
        if route is None or route.version != self._cache.version or route.numbers != numbers:
            route = self._route = self._find_route(numbers)
        count = len(rows)
        positions = [rows[index].position for index in route.order]
        self._all.input_ids[:count, 0] = [rows[index].token for index in route.order]
        self._all.set_positions(positions)
        route.embed.run()
        self._run_layers(route, positions)
        route.head.run()
        self._cache.set_lengths(numbers, [row.position + 1 for row in rows])
        return route.logits

    def release(self, row: int) -> None:
        """See SlotStitcher."""
        if self._chunked is not None and row in self._chunked.row.rows:
            self._drop_chunked()
        self._plans.pop(row, None)
        self._cache.release(row)

    def reset(self) -> None:
        """See SlotStitcher."""
        self._drop_chunked()
        self._unbind()
        self._plans.clear()
        self._cache.close()

    def close(self) -> None:
        """See SlotStitcher."""
        self.reset()
        for ends in self._ends.values():
            for binding in ends:
                binding.release()
        self._ends.clear()
        self._loaded = None  # a stream that nobody reads may hold this for long

    def _run_layers(self, route: _Route, positions: Sequence[int]) -> None:
        whole, part = self._all, self._part
        gathered: Array | None = None
        for stop in route.stops:
            if stop.rows is not gathered:
                if gathered is not None:
                    whole.hidden_states[gathered] = part.hidden_states[: len(gathered)]
                gathered = stop.rows
                if gathered is not None:
                    self._gather(gathered, positions)
            stop.binding.run()
        if gathered is not None:
            whole.hidden_states[gathered] = part.hidden_states[: len(gathered)]

    def _gather(self, rows: Array, positions: Sequence[int]) -> None:
        """Bring rows of the step, and where they stand, to the second buffers."""
        held = self._part.hidden_states[: len(rows)]
        np.take(self._all.hidden_states, rows, axis=0, out=held)
        self._part.set_positions([positions[row] for row in rows])

    def _find_route(self, numbers: Sequence[int]) -> _Route:
        """How rows ``numbers`` go through the layers that they reside in, lowest first."""
        num_layers = len(self._engines.layers)
        residents = [list(self._cache.residents(layer)) for layer in range(num_layers)]
        order = residents[-1]
        assert sorted(order) == sorted(numbers), "a row runs without a slot, or the other way round"
        place = {number: index for index, number in enumerate(order)}
        stops: list[_Stop] = []
        now, rows = order, None
        for layer, inside in enumerate(residents):
            if not inside:
                continue
            if inside != now:
                now = inside
                rows = None if now == order else np.array([place[number] for number in now])
            stops.append(_Stop(rows, self._binding(layer, len(now), is_part=rows is not None)))
        index = {number: index for index, number in enumerate(numbers)}
        embed, head = self._ends_of(len(order))
        return _Route(
            version=self._cache.version,
            numbers=list(numbers),
            order=[index[number] for number in order],
            stops=stops,
            embed=embed,
            head=head,
            logits=HostLogits([self._all.logits[place[number]] for number in numbers]),
        )

    def _binding(self, layer: int, rows: int, *, is_part: bool) -> Binding:
        generation, key = self._cache.generation(layer), (layer, rows, is_part)
        found = self._bound.get(key)
        if found is None or found[0] != generation:
            if found is not None:
                found[1].release()
            buffers = self._part if is_part else self._all
            caches = cache_tensors(*self._cache.first(layer, rows))
            binding = bind(self._engines.layers[layer], buffers.tensors(rows) | caches)
            found = self._bound[key] = generation, binding
        return found[1]

    def _ends_of(self, rows: int) -> tuple[Binding, Binding]:
        if rows not in self._ends:
            tensors = self._all.tensors(rows)
            engines = self._engines
            self._ends[rows] = (bind(engines.embed, tensors), bind(engines.head, tensors))
        return self._ends[rows]

    def _leave_bypassed(self, row: StepRow) -> None:
        """Free the row's slots in the layers that it bypasses from now on."""
        before = self._plans.get(row.row)
        if before is row.plan or before == row.plan:
            return
        kept = frozenset(row.plan.layers)
        layers = range(len(self._engines.layers)) if before is None else before.layers
        self._cache.leave(row.row, [layer for layer in layers if layer not in kept])
        self._plans[row.row] = row.plan

    def _reserve(self, rows: Sequence[PromptRow], prompts: KVPlan) -> None:
        reservations = {number: row.reservation for row in rows for number in row.rows}
        self._cache.reserve(reservations, prompts.nbytes)

    def _begin(self, rows: Sequence[PromptRow]) -> None:
        self._cache.set_lengths([row.row for row in rows], [len(row.tokens) for row in rows])
        for row in rows:
            if row.copies:
                self._cache.fork(row.row, row.copies)

    def _copy_kept(
        self, rows: Sequence[PromptRow], layer: int, source: tuple[Tensor, Tensor]
    ) -> None:
        """Let the rows that keep ``layer`` enter it, with what ``source`` [rows, N, T, W] holds."""
        for index, row in enumerate(rows):
            if not row.reservation.capacities[layer]:
                continue
            length = len(row.tokens)
            for target, held in zip(self._cache.enter(layer, [row.row]), source, strict=True):
                cast(Array, target)[0, :, :length] = cast(Array, held)[index, :, :length]

    def _scratch_plan(self, rows: Sequence[PromptRow]) -> KVPlan:
        """One pair for the layers that not all rows keep."""
        layers = range(len(self._engines.layers))
        longest = max(
            (
                max(row.active_length(layer) for row in rows)
                for layer in layers
                if _keepers(rows, layer) < len(rows)
            ),
            default=0,
        )
        return KVPlan(
            self._cache.layout,
            rows=len(rows),
            capacities=(0,) * len(layers),
            scratch_rows=len(rows) if longest else 0,
            scratch_capacity=longest,
        )

    def _chunk_plan(self, row: PromptRow) -> KVPlan:
        """Every layer needs what it has seen of a prompt that comes in chunks."""
        layers = range(len(self._engines.layers))
        return KVPlan(
            self._cache.layout,
            rows=1,
            capacities=tuple(row.active_length(layer) for layer in layers),
        )

    def _drop_chunked(self) -> None:
        if self._chunked is not None:
            self._chunked.cache.close()
            self._chunked = None

    def _unbind(self) -> None:
        self._route = None
        for _, binding in self._bound.values():
            binding.release()
        self._bound.clear()


@dataclass(frozen=True)
class _Stop:
    """A layer's call: on all rows as they stand, or on those at ``rows`` of them, gathered."""

    rows: Array | None  # the same object for neighbours of one order
    binding: Binding


@dataclass(frozen=True)
class _Route:
    """How a step runs, as long as ``version`` of the cache lasts: steps repeat it."""

    version: int
    numbers: list[int]  # rows, as they are given
    order: list[int]  # places in ``numbers`` of the rows as they stand in the buffers
    stops: list[_Stop]
    embed: Binding
    head: Binding
    logits: HostLogits  # in the order of ``numbers``


class _ChunkedPrompt:
    """A prompt that runs in chunks, its keys and values of all layers, and how far it is."""

    def __init__(self, row: PromptRow, cache: KVCache) -> None:
        self.row = row
        self.cache = cache
        self.done = 0


def _reservations(rows: Sequence[PromptRow]) -> list[Reservation]:
    """One for each row and copy."""
    return [row.reservation for row in rows for _ in row.rows]


def _keepers(rows: Sequence[PromptRow], layer: int) -> int:
    """How many of the rows run ``layer`` after their prompts."""
    return sum(1 for row in rows if row.reservation.capacities[layer])
