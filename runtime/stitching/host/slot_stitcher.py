"""HostSlotStitcher: passes and draft steps of a running batch on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from typing_extensions import override

from ....engines.manifest import TensorRole
from ....engines.memory import address_of
from ...kv.buffers import BufferPool
from ...kv.cache import SlotCache
from ...kv.plans import PromptRow
from ...kv.prefixes import PrefixCache
from ...schedule import LayerPlan
from ...tokens.logits import HostLogits
from ..draft_rows import DraftRows
from ..protocol import DraftRow, StepRow, active_counts
from ..slot_stitcher import SlotStitcher
from .routes import Drafted, Fed, PassLayout, Route, Stop, TokenGroup
from .stitcher import HostStitcher
from .trained import HostTrainedDrafts
from .workspace import Workspace

# Bindings kept per layer: one for each shape of its calls and buffer of its slots. Beyond that, all
# are bound anew.
_MOST_BINDINGS = 128
_LASTING_ROUTES = 64  # kept for later texts
_KEPT_ROUTES = 16  # the number of guesses changes from pass to pass


_Residents = dict[int, list[int]]  # by layer
_SlotPlaces = tuple[tuple[int, int, int] | None, ...] | None


class HostSlotStitcher(SlotStitcher):
    """Runs passes on the engines of a `HostStitcher`, which it does not own.

    Hidden states of a pass lie token after token, row after row, without padding; embedding and
    head run on exactly these. A layer runs all of its slots in one call, [rows, longest, E], for
    which its tokens are gathered and padded: a shorter row repeats its last token, and the results
    are dropped. What padding writes to the cache lies after the row's own positions, where the next
    token that is fed overwrites it before it is read. Rows have the order of the highest layer that
    all of them run; in that layer, rows with equally many tokens need no gathering.

    Worked: rows a and b feed a0 a1 a2 and b0, and a2 bypasses layer 4. Layer 3 runs
    [[a0 a1 a2] [b0 b0 b0]], layer 4 [[a0 a1] [b0 b0]].

    ONNX Runtime's own attention takes several tokens after a past for one row only, so its layers
    are called row by row.

    In a draft step, rows in a layer's slots that don't draft take part in its call. They write
    their keys and values at the position that their next pass overwrites before it is read. A layer
    that they leave in that pass may hold no such position; there they write the last one, which
    nothing reads again. The head runs only on the rows that draft.

    Worked: rows 7, 8, 9 have 5, 6, 9 positions; 7 and 9 draft. The first step writes positions
    5, 6, 9, the second 6, 6, 10, and the pass after them begins again at 5, 6, 9.
    """

    def __init__(
        self,
        engines: HostStitcher,
        cache: SlotCache,
        pool: BufferPool,
        prefixes: PrefixCache | None,
    ) -> None:
        super().__init__(cache, pool, prefixes)
        self._host: HostStitcher | None = engines
        self._routes: list[Route] = []  # of the last passes, the latest first
        self._places: tuple[int, _SlotPlaces] | None = None  # by the cache's version
        has_draft_layer = cache.memory.has_draft_layer
        self._trained = HostTrainedDrafts(engines, cache, self._held) if has_draft_layer else None

    @property
    @override
    def _engines(self) -> HostStitcher:
        assert self._host is not None, "closed"
        return self._host

    @property
    def _workspace(self) -> Workspace:
        return self._engines.workspace()

    @override
    def step(self, rows: Sequence[StepRow], ahead: Sequence[StepRow] = ()) -> HostLogits:
        if any(len(row.tokens) != 1 for row in rows):
            self._require_feedable(rows)
        for row in rows:
            self._leave_bypassed(row)
        return self._run(rows)

    @override
    def draft(self, rows: Sequence[DraftRow], plan: LayerPlan) -> HostLogits:
        made_of = [row.row for row in rows], plan
        known = self._known_route(made_of)
        drafting = known.drafting if known else DraftRows.of(self._cache, rows, plan)
        assert drafting is not None
        drafting.require_positions(self._cache, rows)
        fed = drafting.fed(self._cache, rows)
        route = known or self._remember(self._find_route(fed, made_of, drafting))
        self._call_engines(route, fed)
        workspace, layout = self._workspace, route.layout
        workspace.head_positions[: len(rows)] = layout.given_firsts[: len(rows)]
        workspace.draft_head(layout.num_tokens, len(rows)).run()
        return route.logits

    @override
    def draft_trained(self, rows: Sequence[DraftRow]) -> HostLogits:
        assert self._trained is not None, "these slots have no draft layer"
        fed = self._held.feed(rows)
        # Rows that joined since the last pass are padded to what another row had accepted in it.
        self._enlarge(len(fed) * max(len(one.tokens) for one in fed))
        return self._trained.step(rows, fed)

    @override
    def close(self) -> None:
        self.reset()
        self._host = self._trained = None  # a stream that nobody reads may hold this for long

    @override
    def _begin(self, rows: Sequence[PromptRow]) -> None:
        super()._begin(rows)
        if self._trained is None:
            return
        for row, states in zip(rows, self._engines.end_states, strict=True):
            for number in row.rows:
                self._held.hold(number, len(row.tokens) - 1, row.tokens[-1:], states[None])

    @override
    def _unbind(self) -> None:
        self._routes.clear()

    def _run(self, rows: Sequence[StepRow]) -> HostLogits:
        """Run a pass of rows that have already left the layers they bypass."""
        fed = [(row.row, row.plans) for row in rows]
        route = self._known_route(fed) or self._remember(self._pass_route(rows, fed))
        reads = () if self._trained is None else self._engines.reads
        self._call_engines(route, rows, reads)
        route.head.run()
        if self._trained is not None:
            states = self._workspace.trained.kept
            for row, first in zip(rows, route.layout.given_firsts, strict=True):
                left = states[first : first + len(row.tokens)]
                self._held.hold(row.row, row.position, row.tokens, left)
        self._cache.set_lengths(
            [row.row for row in rows], [row.position + len(row.tokens) for row in rows]
        )
        return route.logits

    def _call_engines(
        self, route: Route, rows: Sequence[StepRow], reads: Sequence[int] = ()
    ) -> None:
        """Run a route up to its head; keep the states after each number of layers in ``reads``."""
        whole, layout = self._workspace.whole, route.layout
        tokens = [token for index in layout.order for token in rows[index].tokens]
        starts = [rows[index].position for index in layout.order]
        whole.input_ids[: len(tokens), 0] = tokens
        positions = (
            starts if layout.offsets is None else np.array(starts)[layout.owners] + layout.offsets
        )
        whole.position_ids[: len(tokens), 0] = positions
        route.embed.run()
        group: TokenGroup | None = None
        num_kept = 0
        for stop in route.stops:
            while num_kept < len(reads) and reads[num_kept] <= stop.layer:
                self._scatter(group)
                self._keep(num_kept, len(tokens))
                num_kept += 1
            if stop.group is not group:
                self._scatter(group)
                group = stop.group
                self._gather(group, starts)
            for binding in stop.bindings:
                binding.run()
        self._scatter(group)
        for index in range(num_kept, len(reads)):
            self._keep(index, len(tokens))

    def _keep(self, index: int, tokens: int) -> None:
        """Keep the current states of the pass's ``tokens`` as the ``index``-th that are read."""
        workspace = self._workspace
        workspace.trained.kept[:tokens, index] = workspace.whole.hidden_states[:tokens, 0]

    def _gather(self, group: TokenGroup, starts: Sequence[int]) -> None:
        """Set the positions of the group's rows, and gather its tokens."""
        whole = self._workspace.whole
        buffers = whole if group.tokens is None else self._workspace.gathered
        if group.rows is not None:
            starts = [starts[row] for row in group.rows]
        if group.last is not None:
            starts = list(map(min, starts, group.last))
        buffers.set_rows(starts, group.counts, is_split=group.is_split)
        if group.tokens is not None:
            padded = len(group.tokens)
            np.take(whole.hidden_states, group.tokens, 0, out=buffers.hidden_states[:padded])
            if group.longest > 1:
                np.take(whole.position_ids, group.tokens, 0, out=buffers.position_ids[:padded])
        if group.longest == 1:
            buffers.position_ids[: len(starts), 0] = starts

    def _scatter(self, group: TokenGroup | None) -> None:
        if group is not None and group.tokens is not None:
            held = self._workspace.gathered.hidden_states[group.unpadded]
            self._workspace.whole.hidden_states[group.own] = held

    def _known_route(self, made_of: Fed | Drafted) -> Route | None:
        self.has_found_route = False
        if self._routes and self._routes[0].version != self._cache.version:
            self._routes.clear()
        for index, route in enumerate(self._routes):
            if route.made_of == made_of:
                self._routes.insert(0, self._routes.pop(index))
                return route
        return None

    def _remember(self, route: Route) -> Route:
        self._routes = [route, *self._routes[: _KEPT_ROUTES - 1]]
        return route

    def _pass_route(self, rows: Sequence[StepRow], fed: Fed) -> Route:
        if len(self._workspace.layers) > _MOST_BINDINGS * len(self._engines.layers):
            self._unbind()
            self._workspace.layers.close()
        self._enlarge(len(rows) * max(len(row.tokens) for row in rows))
        if len(rows) == 1 and (slots := self._slot_places()) is not None:
            return self._lasting_route(rows, fed, slots)
        return self._find_route(rows, fed)

    def _enlarge(self, tokens: int) -> None:
        """Make the memory of passes large enough for ``tokens`` tokens, including padding."""
        if tokens > self._workspace.max_tokens:
            self._unbind()
            self._engines.workspace(tokens)

    def _lasting_route(self, rows: Sequence[StepRow], fed: Fed, slots: _SlotPlaces) -> Route:
        """Return the route of a single row; an earlier text in the same memory may have left it."""
        key, kept = (rows[0].plans, slots), self._workspace.layers.routes
        found: Route | None = kept.get(key)
        if found is not None:
            return replace(found, version=self._cache.version, made_of=fed)
        if len(kept) >= _LASTING_ROUTES:
            kept.clear()
        route = kept[key] = self._find_route(rows, fed)
        return route

    def _slot_places(self) -> _SlotPlaces:
        """Return where the only row's slots lie, layer by layer; None with several rows."""
        version = self._cache.version
        if self._places is None or self._places[0] != version:
            self._places = version, self._find_slot_places()
        return self._places[1]

    def _find_slot_places(self) -> _SlotPlaces:
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

    def _find_route(
        self,
        rows: Sequence[StepRow],
        made_of: Fed | Drafted,
        drafting: DraftRows | None = None,
    ) -> Route:
        """Find the calls of the layers that the rows reside in, lowest first."""
        self.has_found_route = True
        residents = drafting.residents if drafting else self._residents()
        workspace, layout = self._workspace, PassLayout.of(rows, residents)
        embed, head = workspace.ends(layout.num_tokens)
        if drafting:
            logits = HostLogits(workspace.draft_logits)
        else:
            given = zip(layout.given_firsts, rows, strict=True)
            scored = [first + token for first, row in given for token in range(len(row.tokens))]
            logits = HostLogits([workspace.whole.logits[token] for token in scored])
        return Route(
            version=self._cache.version,
            made_of=made_of,
            layout=layout,
            stops=self._find_stops(rows, layout, residents, is_draft=drafting is not None),
            embed=embed,
            head=head,
            logits=logits,
            drafting=drafting,
        )

    def _find_stops(
        self, rows: Sequence[StepRow], layout: PassLayout, residents: _Residents, *, is_draft: bool
    ) -> list[Stop]:
        """Return the calls of the layers in which ``rows`` reside."""
        num_layers = len(self._engines.layers)
        active = [active_counts(rows[index], num_layers) for index in layout.order]
        place_of = {rows[index].row: place for place, index in enumerate(layout.order)}
        stops: list[Stop] = []
        group: TokenGroup | None = None
        now: object = None
        for layer, inside in residents.items():
            places = [place_of[number] for number in inside]
            counts = [active[place][layer] for place in places]
            last = [self._cache.reserved(row, layer) - 1 for row in inside] if is_draft else None
            roles = self._engines.session(layer).roles
            is_split = TensorRole.SEQLENS_K in roles and max(counts) > 1
            if group is None or (places, counts, last, is_split) != now:
                now = places, counts, last, is_split
                group = TokenGroup.of(places, counts, layout, last, is_split=is_split)
            bindings = self._workspace.layers.calls(
                self._cache,
                layer,
                counts,
                layout.firsts[places].tolist(),
                is_split=is_split,
                is_gathered=group.tokens is not None,
            )
            stops.append(Stop(layer, group, bindings))
        return stops

    def _residents(self) -> _Residents:
        """Return the rows in the slots of each layer that has some."""
        layers = range(len(self._engines.layers))
        found = {layer: list(self._cache.residents(layer)) for layer in layers}
        return {layer: inside for layer, inside in found.items() if inside}
