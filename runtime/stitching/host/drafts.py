"""Draft steps on the host: one token of some rows through some of the layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....engines.backends.session import Binding
from ....engines.memory import Array
from ...kv.cache import SlotCache
from ...schedule import LayerPlan
from ...tokens.sampler import HostLogits
from ..draft_rows import DraftRows
from ..protocol import DraftRow
from .stitcher import HostStitcher

_KEPT_ROUTES = 8  # rows stop drafting at different places of a window


class HostDrafts:
    """Runs draft steps on the buffers and bindings of ordinary steps.

    All rows in a layer's slots take part in its call. One that does not draft writes its keys and
    values at the position that its next pass overwrites before it is read. A layer that it leaves
    in that pass may hold no such position: there it writes the last one, which nobody reads again.
    The head runs on the rows that draft only.

    Worked: rows 7, 8, 9 have 5, 6, 9 positions; 7 and 9 draft. The first step writes positions
    5, 6, 9, the second 6, 6, 10, and the pass behind them begins again at 5, 6, 9.
    """

    def __init__(self, engines: HostStitcher, cache: SlotCache) -> None:
        self._engines = engines
        self._workspace = engines.steps
        self._whole, self._part = engines.steps.whole, engines.steps.part
        self._cache = cache
        self._routes: list[_Route] = []  # of the last steps, the latest first
        self.has_found_route = False  # in the last step, which took longer for it

    def run(self, rows: Sequence[DraftRow], plan: LayerPlan) -> HostLogits:
        """Run a draft step; see `SlotStitcher.draft`."""
        route = self._route_of(rows, plan)
        route.rows.require_positions(self._cache, rows)
        positions = [self._cache.length(number) for number in route.order]
        tokens = [0] * len(positions)
        for place, row in zip(route.places, rows, strict=True):
            tokens[place], positions[place] = row.token, row.position
        count = len(positions)
        self._whole.input_ids[:count, 0] = tokens
        self._whole.set_positions(positions)
        route.embed.run()
        self._run_layers(route, positions)
        self._workspace.head_positions[: len(rows)] = route.places
        route.head.run()
        return route.logits

    def forget(self) -> None:
        """Drop all routes, whose bindings are about to be dropped."""
        self._routes.clear()

    def _run_layers(self, route: _Route, positions: Sequence[int]) -> None:
        group: _Group | None = None
        for stop in route.stops:
            if stop.group is not group:
                self._scatter(group)
                group = stop.group
                self._gather(group, positions)
            stop.binding.run()
        self._scatter(group)

    def _gather(self, group: _Group, positions: Sequence[int]) -> None:
        buffers, rows = self._whole, group.rows
        if rows is not None:
            buffers = self._part
            np.take(self._whole.hidden_states, rows, 0, out=buffers.hidden_states[: len(rows)])
            positions = [positions[row] for row in rows]
        buffers.set_positions(list(map(min, positions, group.last)))

    def _scatter(self, group: _Group | None) -> None:
        if group is not None and group.rows is not None:
            held = self._part.hidden_states[: len(group.rows)]
            self._whole.hidden_states[group.rows] = held

    def _route_of(self, rows: Sequence[DraftRow], plan: LayerPlan) -> _Route:
        self.has_found_route = False
        if self._routes and self._routes[0].rows.version != self._cache.version:
            self._routes.clear()
        for route in self._routes:
            if route.rows.serves(self._cache, rows, plan):
                return route
        self.has_found_route = True
        route = self._find_route(DraftRows.of(self._cache, rows, plan))
        self._routes = [route, *self._routes[: _KEPT_ROUTES - 1]]
        return route

    def _find_route(self, rows: DraftRows) -> _Route:
        """Find the calls of the plan's layers, lowest first, on the rows that reside in them."""
        residents, numbers = rows.residents, rows.numbers
        order = list(dict.fromkeys(row for inside in residents.values() for row in inside))
        for inside in residents.values():  # the order of a layer that all reside in, if there is
            order = inside if len(inside) == len(order) else order
        place = {number: index for index, number in enumerate(order)}
        stops: list[_Stop] = []
        group: _Group | None = None
        now: object = None
        for layer, inside in residents.items():
            last = [self._cache.reserved(number, layer) - 1 for number in inside]
            if (inside, last) != now or group is None:
                now = inside, last
                gathered = None if inside == order else np.array([place[one] for one in inside])
                group = _Group(gathered, last)
            is_part = group.rows is not None
            bound = self._workspace.layers.layer(self._cache, layer, len(inside), is_part=is_part)
            stops.append(_Stop(group, bound))
        return _Route(
            rows=rows,
            order=order,
            places=[place[number] for number in numbers],
            stops=stops,
            embed=self._workspace.ends(len(order))[0],
            head=self._workspace.draft_head(len(order), len(numbers)),
            logits=HostLogits(self._workspace.draft_logits),
        )


@dataclass(frozen=True, eq=False)
class _Group:
    """The rows that neighbouring layers run, gathered from places ``rows`` or as they stand.

    ``last`` are the last positions that the rows hold in these layers.
    """

    rows: Array | None
    last: list[int]


@dataclass(frozen=True)
class _Stop:
    """A layer's call on the rows of a group."""

    group: _Group
    binding: Binding


@dataclass(frozen=True)
class _Route:
    """The calls of a draft step; steps of the same ``rows`` repeat them."""

    rows: DraftRows
    order: list[int]  # rows that take part, as they stand in the buffers
    places: list[int]  # in ``order``, of the rows that draft
    stops: list[_Stop]
    embed: Binding
    head: Binding
    logits: HostLogits  # in the order in which rows were given
