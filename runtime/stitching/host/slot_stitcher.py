"""HostSlotStitcher: passes of a running batch on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ....engines.backends.session import Binding
from ....engines.memory import Array
from ...kv.pool import BufferPool
from ...kv.prefixes import PrefixCache
from ...kv.slot_cache import SlotCache
from ...tokens.sampler import HostLogits
from ..bindings import bind, cache_tensors
from ..protocol import LayerCaches, SlotLimits, StepRow
from ..rows import SlotRows
from .passes import HostPasses
from .stitcher import HostStitcher, StepBuffers


class HostSlotStitcher(SlotRows):
    """Runs passes on the engines of a `HostStitcher`, which it does not own.

    A step's rows stand in the order of the top layer's slots, if all of them run it. A layer whose
    slots have another order, or fewer rows, works on a second set of buffers: its rows are gathered
    there with their positions, and scattered back behind the last layer of that order. Passes in
    which a row feeds several tokens are those of `HostPasses`.
    """

    def __init__(
        self,
        engines: HostStitcher,
        cache: SlotCache,
        pool: BufferPool,
        limits: SlotLimits,
        prefixes: PrefixCache | None,
    ) -> None:
        super().__init__(cache, pool, len(engines.layers), limits, prefixes)
        self._loaded: HostStitcher | None = engines
        self._all = engines.buffers
        max_rows = len(self._all.row_positions)
        self._part = StepBuffers(engines.embed.spec, engines.head.spec, max_rows)
        self._ends: dict[int, tuple[Binding, Binding]] = {}  # rows -> embed and head
        self._bound: dict[tuple[int, int, bool], tuple[int, Binding]] = {}
        self._route: _Route | None = None  # of the last step
        self._passes = HostPasses(engines, cache)

    @property
    def _engines(self) -> HostStitcher:
        assert self._loaded is not None, "closed"
        return self._loaded

    def step(self, rows: Sequence[StepRow]) -> HostLogits:
        """See SlotStitcher."""
        if any(len(row.tokens) != 1 for row in rows):
            self._passes.check(rows)
            for row in rows:
                self._leave_bypassed(row)
            return self._passes.run(rows)
        for row in rows:
            self._leave_bypassed(row)
        numbers = [row.row for row in rows]
        route = self._route
        if route is None or route.version != self._cache.version or route.numbers != numbers:
            route = self._route = self._find_route(numbers)
        count = len(rows)
        positions = [rows[index].position for index in route.order]
        self._all.input_ids[:count, 0] = [rows[index].tokens[0] for index in route.order]
        self._all.set_positions(positions)
        route.embed.run()
        self._run_layers(route, positions)
        route.head.run()
        self._cache.set_lengths(numbers, [row.position + 1 for row in rows])
        return route.logits

    def close(self) -> None:
        """See SlotStitcher."""
        self.reset()
        for ends in self._ends.values():
            for binding in ends:
                binding.release()
        self._ends.clear()
        self._passes.close()
        self._loaded = None  # a stream that nobody reads may hold this for long

    def _run_prompts(
        self,
        prompts: Sequence[Sequence[int]],
        active_lengths: Sequence[Sequence[int]],
        caches: LayerCaches,
        after: Callable[[int], None],
    ) -> Array:
        """See SlotRows."""
        return self._engines.prompts.prefill(prompts, active_lengths, caches, after)

    def _run_chunk(
        self,
        tokens: Sequence[int],
        start: int,
        active_lengths: Sequence[int],
        caches: LayerCaches,
        *,
        is_last: bool,
    ) -> Array | None:
        """See SlotRows."""
        run = self._engines.prompts.chunk
        return run(tokens, start, active_lengths, caches, is_last=is_last)

    def _unbind(self) -> None:
        self._route = None
        for _, binding in self._bound.values():
            binding.release()
        self._bound.clear()
        self._passes.unbind()

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
        """Copy rows of the step, and their positions, to the second buffers."""
        held = self._part.hidden_states[: len(rows)]
        np.take(self._all.hidden_states, rows, axis=0, out=held)
        self._part.set_positions([positions[row] for row in rows])

    def _find_route(self, numbers: Sequence[int]) -> _Route:
        """Find the calls of the layers that the rows reside in, lowest first."""
        residents = [list(self._cache.residents(layer)) for layer in range(self._num_layers)]
        order = residents[-1] if len(residents[-1]) == len(numbers) else list(numbers)
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


@dataclass(frozen=True)
class _Stop:
    """A layer's call, on all rows as they stand or on those at ``rows``, gathered."""

    rows: Array | None  # the same object for neighbours of one order
    binding: Binding


@dataclass(frozen=True)
class _Route:
    """The calls of a step; steps repeat them while ``version`` of the cache lasts."""

    version: int
    numbers: list[int]  # rows, as they are given
    order: list[int]  # places in ``numbers`` of the rows as they stand in the buffers
    stops: list[_Stop]
    embed: Binding
    head: Binding
    logits: HostLogits  # in the order of ``numbers``
