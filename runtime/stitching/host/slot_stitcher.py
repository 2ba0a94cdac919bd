"""HostSlotStitcher: passes of a running batch on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from ....engines.backends.session import Binding
from ....engines.memory import Array
from ...kv.buffers import BufferPool
from ...kv.cache import SlotCache
from ...kv.prefixes import PrefixCache
from ...schedule import LayerPlan
from ...tokens.sampler import HostLogits
from ..protocol import DraftRow, SlotLimits, StepRow
from ..slot_stitcher import SlotStitcher
from .drafts import HostDrafts
from .passes import MOST_BINDINGS, HostPasses
from .stitcher import HostStitcher


class HostSlotStitcher(SlotStitcher):
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
        self._all, self._part = engines.steps.whole, engines.steps.part
        self._loaded: HostStitcher | None = engines
        self._route: _Route | None = None  # of the last step
        self._passes: HostPasses | None = None  # made when a row first feeds several tokens
        self._drafts: HostDrafts | None = None  # made at the first draft step
        self._has_found_route = False

    @property
    @override
    def _engines(self) -> HostStitcher:
        assert self._loaded is not None, "closed"
        return self._loaded

    @override
    def step(self, rows: Sequence[StepRow], ahead: Sequence[StepRow] = ()) -> HostLogits:
        if any(len(row.tokens) != 1 for row in rows):
            passes = self._passes = self._passes or HostPasses(self._engines, self._cache)
            passes.check(rows)
            for row in rows:
                self._leave_bypassed(row)
            logits = passes.run(rows)
            self._has_found_route = passes.has_found_route
            return logits
        for row in rows:
            self._leave_bypassed(row)
        numbers = [row.row for row in rows]
        route = self._route
        self._has_found_route = False
        if route is None or route.version != self._cache.version or route.numbers != numbers:
            self._has_found_route = True
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

    @override
    def draft(self, rows: Sequence[DraftRow], plan: LayerPlan) -> HostLogits:
        if self._drafts is None:
            self._drafts = HostDrafts(self._engines, self._cache)
        logits = self._drafts.run(rows, plan)
        self._has_found_route = self._drafts.has_found_route
        return logits

    @property
    @override
    def has_found_route(self) -> bool:
        return self._has_found_route

    @override
    def close(self) -> None:
        self.reset()
        # a stream that nobody reads may hold this for long
        self._loaded = self._passes = self._drafts = None

    @override
    def _unbind(self) -> None:
        self._route = None
        if self._passes is not None:
            self._passes.forget()
        if self._drafts is not None:
            self._drafts.forget()

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
        workspace = self._engines.steps
        if len(workspace.layers) > MOST_BINDINGS * self._num_layers:
            self._unbind()
            workspace.layers.close()
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
            is_part = rows is not None
            bound = workspace.layers.layer(self._cache, layer, len(now), is_part=is_part)
            stops.append(_Stop(rows, bound))
        index = {number: index for index, number in enumerate(numbers)}
        embed, head = workspace.ends(len(order))
        return _Route(
            version=self._cache.version,
            numbers=list(numbers),
            order=[index[number] for number in order],
            stops=stops,
            embed=embed,
            head=head,
            logits=HostLogits([self._all.logits[place[number]] for number in numbers]),
        )


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
