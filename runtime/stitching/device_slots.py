"""Rows at depths of their own on a device: a step is one upload, one graph, one small download."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np

from ...engines.backends.session import Binding, EngineSession
from ...engines.manifest import TensorRole
from ...engines.memory import Array, DeviceBuffer, DeviceTensor, Tensor
from ..kv.layout import KVLayout
from ..kv.pool import BufferPool, pooled_size
from ..kv.reservation import fixed_sizes
from ..kv.slots import SlotCache
from ..tokens.logits import CandidateLogits
from .device import DeviceStitcher
from .device_graphs import StepGraphs, StepPart
from .device_prompts import mask_capacity
from .device_rows import GATHERED, DeviceRows, StepLayout
from .slot_limits import SlotLimits
from .slot_rows import SlotRows
from .slots import StepRow
from .stitcher import LayerCaches, bind, cache_tensors

# Parts of steps that are kept bound, for each layer and number of rows; beyond it all are made
# anew. Caches that stay where they are need two or three: one for what was gathered, one for each
# layer that may have run before.
_KEPT_PARTS = 8

_Work = Callable[[], None]


class DeviceSlotStitcher(SlotRows):
    """`SlotStitcher` on the engines of a `DeviceStitcher`, which stay its own.

    A layer's slots are bound as the first n of one buffer, n padded to a power of two: what a step
    writes beyond its rows lies in free slots, which the next row's prompt overwrites. Steps are
    graphs, keyed by the padded numbers of rows of the layers that run; who the rows are, where they
    stand and in which slots are data.
    """

    def __init__(
        self, engines: DeviceStitcher, cache: SlotCache, pool: BufferPool, limits: SlotLimits
    ) -> None:
        self._loaded: DeviceStitcher | None = engines
        self._sessions: Sequence[EngineSession] = engines.layers(limits.bucket)
        super().__init__(cache, pool, len(self._sessions), limits)
        self._memory: DeviceRows | None = None  # made when the first step runs
        self._layout: tuple[tuple[int, tuple[int, ...]], StepLayout] | None = None
        self._parts: dict[Hashable, StepPart] = {}
        self._bindings: list[Binding] = []
        self.graphs = StepGraphs(engines.device, engines.capture)

    def step(self, rows: Sequence[StepRow]) -> CandidateLogits:
        """See SlotStitcher."""
        for row in rows:
            self._leave_bypassed(row)
        layout = self._lay_out(rows)
        self._rows.fill(layout, rows)
        self.graphs.run(self._parts_of(layout))
        self._cache.set_lengths([row.row for row in rows], [row.position + 1 for row in rows])
        return self._engines.buffers.candidate_logits(len(rows))

    def close(self) -> None:
        """See SlotStitcher."""
        self.reset()
        self._loaded = self._memory = None  # a stream that nobody reads may hold this for long
        self._sessions = ()

    @property
    def _engines(self) -> DeviceStitcher:
        assert self._loaded is not None, "closed"
        return self._loaded

    @property
    def _rows(self) -> DeviceRows:
        if self._memory is None:
            engines, limits = self._engines, self._limits
            self._memory = DeviceRows(
                engines.memory,
                engines.embed.spec,
                self._num_layers,
                limits.max_rows,
                mask_capacity(engines.layers, limits.bucket),
            )
        return self._memory

    def _run_prompts(
        self,
        prompts: Sequence[Sequence[int]],
        active_lengths: Sequence[Sequence[int]],
        caches: LayerCaches,
        after: Callable[[int], None],
    ) -> Array:
        """See SlotRows."""
        run = self._engines.prompts.prefill
        return run(prompts, active_lengths, self._limits.bucket, caches, after)

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
        return run(tokens, start, active_lengths, self._limits.bucket, caches, is_last=is_last)

    def _unbind(self) -> None:
        self.graphs.clear()
        self._parts.clear()
        for binding in self._bindings:
            binding.release()
        self._bindings.clear()

    def _lay_out(self, rows: Sequence[StepRow]) -> StepLayout:
        """The layout of before, unless a row has come, gone, or left a layer."""
        made_of = self._cache.version, tuple(row.row for row in rows)
        if self._layout is None or self._layout[0] != made_of:
            residents = [self._cache.residents(layer) for layer in range(self._num_layers)]
            layout = StepLayout.of(made_of[1], residents, self._limits.max_rows)
            self._layout = made_of, layout
        return self._layout[1]

    def _parts_of(self, layout: StepLayout) -> list[StepPart]:
        """The embedding, the layers that run and the head, each on its rows."""
        if (
            len(self._parts)
            > _KEPT_PARTS * (self._num_layers + 2) * self._limits.max_rows.bit_length()
        ):
            self._unbind()
        padded = self._engines.padded_rows
        rows = padded(len(layout.order))
        parts = [self._embed_part(rows)]
        source = 0
        for layer, count in layout.layers:
            source = source if layout.is_aligned else GATHERED
            parts.append(self._layer_part(layer, padded(count), source))
            source = layer + 1
        return [*parts, self._head_part(rows, source if layout.is_aligned else GATHERED)]

    def _embed_part(self, rows: int) -> StepPart:
        def make() -> list[_Work]:
            tensors = self._rows.embed_tensors(rows)
            return [self._rows.upload, self._bind(self._engines.embed, tensors)]

        return self._part(("embed", rows), make)

    def _layer_part(self, layer: int, rows: int, source: int) -> StepPart:
        """``source``: the window that it reads."""
        key, value = (_borrowed(tensor) for tensor in self._cache.first(layer, rows))

        def make() -> list[_Work]:
            # The true longest row would be frozen into a graph; the capacity bounds it.
            bound: dict[TensorRole, Tensor] = {
                TensorRole.TOTAL_SEQUENCE_LENGTH: np.array(self._limits.capacity, np.int32)
            }
            tensors = self._rows.layer_tensors(layer, source, rows) | cache_tensors(key, value)
            run = self._bind(self._sessions[layer], tensors | bound)
            return [*self._gathering(layer, rows, source), run]

        return self._part((layer, rows, source, key.address, value.address), make)

    def _head_part(self, rows: int, source: int) -> StepPart:
        def make() -> list[_Work]:
            results: dict[TensorRole, Tensor] = dict(self._engines.buffers.results(rows))
            head = self._bind(self._engines.head, self._rows.head_tensors(source, rows) | results)
            candidates = self._bind(self._engines.candidates, results)
            gathering = self._gathering(self._num_layers, rows, source)
            return [*gathering, head, candidates, self._engines.buffers.download]

        return self._part(("head", rows, source), make)

    def _gathering(self, layer: int, rows: int, source: int) -> list[_Work]:
        return [partial(self._rows.gather, layer, rows)] if source == GATHERED else []

    def _part(self, key: Hashable, make: Callable[[], list[_Work]]) -> StepPart:
        if key not in self._parts:
            self._parts[key] = StepPart(key, make())
        return self._parts[key]

    def _bind(self, session: EngineSession, tensors: Mapping[TensorRole, Tensor]) -> _Work:
        binding = bind(session, tensors)
        self._bindings.append(binding)
        return binding.run


def device_slot_cache(
    pool: BufferPool, layout: KVLayout, num_layers: int, limits: SlotLimits
) -> SlotCache:
    """Slots of ``capacity`` positions each, whatever a row reserves: engines are bound to that.

    Where there is memory for ``max_rows`` of them in all layers, and for prompts beside, buffers
    are made so from the start and stay, and with them all that is captured. Else they grow by rows
    and go, as on the host.
    """

    def pair_bytes(rows: int) -> int:
        return 2 * pooled_size(layout.nbytes(rows, limits.capacity))

    prompts = max(pair_bytes(limits.max_rows), num_layers * pair_bytes(1))
    has_room = num_layers * pair_bytes(limits.max_rows) + prompts <= limits.kv_bytes
    return SlotCache(
        pool,
        layout,
        num_layers=num_layers,
        limit=limits.kv_bytes,
        sizes=fixed_sizes(
            limits.max_rows,
            limits.capacity,
            least_rows=limits.max_rows if has_room else 1,
        ),
        keeps=has_room,
    )


def _borrowed(tensor: Tensor) -> DeviceTensor:
    """The same address, without keeping its buffer: the pool decides how long that lives."""
    owned = cast(DeviceTensor, tensor)
    return replace(owned, buffer=DeviceBuffer(owned.address, owned.nbytes))
