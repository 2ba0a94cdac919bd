"""Passes on the host in which rows feed several tokens each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ....engines.backends.session import Binding
from ....engines.errors import UsageError
from ....engines.manifest import TensorRole
from ....engines.memory import Array, address_of
from ...kv.cache import SlotCache
from ...schedule import LayerPlan
from ...tokens.sampler import HostLogits
from ..protocol import StepRow, active_counts, feeding_problem
from .buffers import StepBuffers
from .stitcher import HostStitcher

# Bindings kept for each layer: one per shape of its calls and buffer of its slots. Beyond it all
# are bound anew.
MOST_BINDINGS = 128
_LEAST_TOKENS = 16  # that the buffers hold
_LASTING_ROUTES = 64  # that serve later texts, too
_KEPT_ROUTES = 16  # the number of guesses changes from pass to pass


_MadeOf = list[tuple[int, tuple[LayerPlan, ...]]]
_SlotMemory = tuple[tuple[int, int, int] | None, ...] | None


class HostPasses:
    """Runs rows of several tokens each, on a past, through the layers that each token's plan names.

    Hidden states of a pass lie token after token, row after row, without padding: embedding and
    head run on exactly these. A layer runs all of its slots in one call, [rows, longest, E], for
    which its tokens are gathered and padded: a shorter row repeats its last token there, whose
    results are dropped. What padding writes to the cache lies behind the row's own positions, where
    the next token that is fed overwrites it before it is read. One row, and rows of as many tokens
    each, need no gathering.

    Worked: rows a and b feed a0 a1 a2 and b0, and a2 bypasses layer 4. Layer 3 runs
    [[a0 a1 a2] [b0 b0 b0]], layer 4 [[a0 a1] [b0 b0]].

    ONNX Runtime's own attention takes several tokens on a past for one row only: its layers are
    called row by row.
    """

    def __init__(self, engines: HostStitcher, cache: SlotCache) -> None:
        self._engines = engines
        self._cache = cache
        self._workspace = engines.passes(_LEAST_TOKENS)
        self._routes: list[_Route] = []  # of the last passes, the latest first
        self._memory: tuple[int, _SlotMemory] | None = None  # by the cache's version
        self.has_found_route = False  # in the last pass, which took longer for it

    @property
    def _all(self) -> StepBuffers:
        return self._workspace.whole

    @property
    def _part(self) -> StepBuffers:
        return self._workspace.part

    def check(self, rows: Sequence[StepRow]) -> None:
        """Raise UsageError for tokens that cannot be fed; nothing has changed then."""
        for row in rows:
            problem = feeding_problem(row, partial(self._cache.reserved, row.row))
            if problem:
                raise UsageError(f"row {row.row}", problem)

    def run(self, rows: Sequence[StepRow]) -> HostLogits:
        """Run a pass of rows that `check` let pass and that have left the layers they bypass."""
        route = self._route_of(rows)
        starts = np.array([rows[index].position for index in route.order])
        count = len(route.owners)
        tokens = [token for index in route.order for token in rows[index].tokens]
        self._all.input_ids[:count, 0] = tokens
        self._all.position_ids[:count, 0] = starts[route.owners] + route.offsets
        route.embed.run()
        group: _Group | None = None
        for stop in route.stops:
            if stop.group is not group:
                self._scatter(group)
                group = stop.group
                self._gather(group, starts)
            for binding in stop.bindings:
                binding.run()
        self._scatter(group)
        route.head.run()
        self._cache.set_lengths(
            [row.row for row in rows], [row.position + len(row.tokens) for row in rows]
        )
        return route.logits

    def forget(self) -> None:
        """Drop all routes, whose slots are about to be freed."""
        self._routes.clear()

    def _gather(self, group: _Group, starts: Array) -> None:
        """Set where the group's rows stand, and bring its tokens together."""
        buffers = self._all if group.tokens is None else self._part
        buffers.set_rows(starts[group.rows], group.counts)
        if group.tokens is None:
            return
        padded = len(group.tokens)
        for source, target in (
            (self._all.hidden_states, buffers.hidden_states),
            (self._all.position_ids, buffers.position_ids),
        ):
            np.take(source, group.tokens, axis=0, out=target[:padded])

    def _scatter(self, group: _Group | None) -> None:
        if group is not None and group.tokens is not None:
            own = group.tokens[group.places]
            self._all.hidden_states[own] = self._part.hidden_states[group.places]

    def _route_of(self, rows: Sequence[StepRow]) -> _Route:
        made_of = [(row.row, row.plans) for row in rows]
        self.has_found_route = False
        if self._routes and self._routes[0].version != self._cache.version:
            self._routes.clear()
        for place, route in enumerate(self._routes):
            if route.made_of == made_of:
                self._routes.insert(0, self._routes.pop(place))
                return route
        if len(self._workspace.layers) > MOST_BINDINGS * len(self._engines.layers):
            self.forget()
            self._workspace.layers.close()
        self._reserve_buffers(rows)
        made = self._lasting_route(rows, made_of) if len(rows) == 1 else None
        if made is None:
            self.has_found_route = True
            made = self._find_route(rows, made_of)
        self._routes = [made, *self._routes[: _KEPT_ROUTES - 1]]
        return made

    def _lasting_route(self, rows: Sequence[StepRow], made_of: _MadeOf) -> _Route | None:
        """Return the route of one row alone, as an earlier text on the same memory had it.

        None if other rows hold slots.
        """
        version = self._cache.version
        if self._memory is None or self._memory[0] != version:
            self._memory = version, self._slot_memory()
        memory = self._memory[1]
        if memory is None:
            return None
        key, kept = (rows[0].plans, memory), self._workspace.layers.routes
        found: _Route | None = kept.get(key)
        if found is not None:
            return replace(found, version=version, made_of=made_of)
        self.has_found_route = True
        route = self._find_route(rows, made_of)
        if len(kept) >= _LASTING_ROUTES:
            kept.clear()
        kept[key] = route
        return route

    def _slot_memory(self) -> _SlotMemory:
        """Return where the only row's slots lie, layer by layer; None if there are more rows."""
        found: list[tuple[int, int, int] | None] = []
        for layer in range(len(self._engines.layers)):
            inside = len(self._cache.residents(layer))
            if inside > 1:
                return None
            if inside == 0:
                found.append(None)
                continue
            key, value = self._cache.first(layer, 1)
            found.append((address_of(key), address_of(value), key.shape[2]))
        return tuple(found)

    def _reserve_buffers(self, rows: Sequence[StepRow]) -> None:
        """Make the buffers large enough; they double, so that few are made."""
        padded = len(rows) * max(len(row.tokens) for row in rows)
        if padded > self._workspace.max_tokens:
            self.forget()
            self._workspace = self._engines.passes(padded)

    def _find_route(self, rows: Sequence[StepRow], made_of: _MadeOf) -> _Route:
        """Find the calls of the layers that the rows reside in, lowest first."""
        layers = self._engines.layers
        residents = [list(self._cache.residents(layer)) for layer in range(len(layers))]
        index = {row.row: place for place, row in enumerate(rows)}
        numbers = residents[-1] if len(residents[-1]) == len(rows) else list(index)
        order = [index[number] for number in numbers]
        lengths = np.array([len(rows[place].tokens) for place in order])
        firsts = np.cumsum(lengths) - lengths  # of each row, in the pass
        active = [active_counts(rows[place], len(layers)) for place in order]
        place_of = {number: place for place, number in enumerate(numbers)}
        stops: list[_Stop] = []
        group: _Group | None = None
        now: object = None
        for layer, (session, inside) in enumerate(zip(layers, residents, strict=True)):
            if not inside:
                continue
            at = [place_of[number] for number in inside]
            counts = [active[place][layer] for place in at]
            row_by_row = TensorRole.SEQLENS_K in session.roles
            if group is None or (at, counts, row_by_row) != now:
                now = at, counts, row_by_row
                group = _Group.of(
                    np.array(at), np.array(counts), lengths, firsts, row_by_row=row_by_row
                )
            stops.append(_Stop(group, self._layer_bindings(layer, group, firsts, row_by_row)))
        count = int(lengths.sum())
        embed, head = self._workspace.ends(count)
        starts = (int(firsts[place_of[row.row]]) for row in rows)
        flat = [
            place
            for start, row in zip(starts, rows, strict=True)
            for place in range(start, start + len(row.tokens))
        ]
        return _Route(
            version=self._cache.version,
            made_of=made_of,
            order=order,
            owners=np.repeat(np.arange(len(order)), lengths),
            offsets=np.arange(count) - np.repeat(firsts, lengths),
            stops=stops,
            embed=embed,
            head=head,
            logits=HostLogits([self._all.logits[place] for place in flat]),
        )

    def _layer_bindings(
        self, layer: int, group: _Group, firsts: Array, row_by_row: bool
    ) -> list[Binding]:
        bound, rows = partial(self._workspace.layers.layer, self._cache), len(group.rows)
        if not row_by_row:
            return [bound(layer, rows, group.longest, is_part=group.is_gathered)]
        return [
            bound(layer, 1, int(tokens), slot=slot, first_token=int(firsts[row]), is_part=False)
            for slot, (row, tokens) in enumerate(zip(group.rows, group.counts, strict=True))
        ]


@dataclass(frozen=True, eq=False)
class _Group:
    """The tokens that neighbouring layers run.

    ``rows`` [n]: places in the pass, in the order of the layers' slots; ``counts`` [n]: tokens of
    each. ``tokens`` [n · longest]: the pass's tokens that are gathered, padding included; None if
    they already lie so. ``places``: those of ``tokens`` that are no padding.
    """

    rows: Array
    counts: Array
    longest: int
    tokens: Array | None
    places: Array

    @classmethod
    def of(
        cls, rows: Array, counts: Array, lengths: Array, firsts: Array, *, row_by_row: bool
    ) -> _Group:
        longest = int(counts.max())
        steps = np.arange(longest)
        is_dense = (
            len(rows) == len(lengths)
            and bool((rows == np.arange(len(rows))).all())
            and (len(rows) == 1 or bool((counts == longest).all() and (lengths == longest).all()))
        )
        tokens = firsts[rows][:, None] + np.minimum(steps, counts[:, None] - 1)
        places = np.flatnonzero(steps < counts[:, None])
        lies_so = is_dense or row_by_row
        return cls(rows, counts, longest, None if lies_so else tokens.reshape(-1), places)

    @property
    def is_gathered(self) -> bool:
        return self.tokens is not None


@dataclass(frozen=True)
class _Stop:
    """A layer's calls on the tokens of a group, which neighbours share."""

    group: _Group
    bindings: list[Binding]


@dataclass(frozen=True)
class _Route:
    """The calls of a pass; passes repeat them while ``version`` of the cache lasts."""

    version: int
    made_of: _MadeOf  # rows and the plans of their tokens, as given
    order: list[int]  # places in ``made_of`` of the rows as they stand in the pass
    owners: Array  # of each token of the pass, its row's place in ``order``
    offsets: Array  # and how many of the row's tokens precede it
    stops: list[_Stop]
    embed: Binding
    head: Binding
    logits: HostLogits  # in the order in which rows and their tokens were given
