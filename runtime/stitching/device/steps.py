"""DeviceSteps: steps over slots of one capacity, bound and captured once, then launched."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np

from ....engines.backends.device import Device, DeviceGraph, DeviceMemory
from ....engines.backends.session import Binding, EngineSession
from ....engines.errors import SkipDecError
from ....engines.manifest import TensorRole
from ....engines.memory import DeviceBuffer, DeviceTensor, Tensor
from ..protocol import StepRow, bind, cache_tensors
from .buffers import ComingLogits, StepResults
from .rows import GATHERED, DeviceRows, StepLayout

_LOGGER = logging.getLogger(__name__)

# Steps that are kept as graphs of their own. A running batch has dozens of combinations of its
# layers' padded row counts, because depth never grows along a row.
MOST_GRAPHS = 64
_MOST_SEEN = 4 * MOST_GRAPHS

_Work = Callable[[], None]


class GraphCapture:
    """Captures graphs. After the first failure, it logs the reason and captures no more."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.is_possible = True

    def capture(self, enqueue: Callable[[], None]) -> DeviceGraph | None:
        """Return a graph of ``enqueue``, which has run once before; None if capturing fails."""
        if not self.is_possible:
            return None
        try:
            return self._device.capture(enqueue)
        except SkipDecError as error:
            _LOGGER.warning("steps are enqueued engine by engine, not as graphs: %s", error)
            self.is_possible = False
            return None


@dataclass(eq=False)
class StepPart:
    """Work that a step enqueues together: its beginning, a layer, or its end."""

    key: Hashable  # parts with equal keys are interchangeable
    work: Sequence[_Work]
    graph: DeviceGraph | None = None

    def enqueue(self) -> None:
        """Enqueue all of the work, piece by piece."""
        for piece in self.work:
            piece()


class StepGraphs:
    """Runs steps made of parts: the 64 used last as one graph each, others part by part.

    A step is captured when it first runs, or once there are 64, when it runs a second time. The
    parts of other steps are captured one by one, because rare steps consist of frequent parts.
    ``parts`` are those that the owner has made, by key.
    """

    def __init__(self, device: Device, capture: GraphCapture) -> None:
        self._device = device
        self._capture = capture
        self._steps: OrderedDict[Hashable, DeviceGraph] = OrderedDict()
        self._seen: OrderedDict[Hashable, None] = OrderedDict()
        self.parts: dict[Hashable, StepPart] = {}
        self._bindings: list[Binding] = []

    def __len__(self) -> int:
        return len(self._steps)

    def bind(self, session: EngineSession, tensors: Mapping[TensorRole, Tensor]) -> _Work:
        """Return an engine's call for the work of a part; `clear` releases it."""
        binding = bind(session, tensors)
        self._bindings.append(binding)
        return binding.run

    def enqueue(self, parts: Sequence[StepPart]) -> None:
        """Enqueue a step, whether or not it has a graph of its own yet."""
        key = tuple(part.key for part in parts)
        graph = self._steps.get(key)
        if graph is not None:
            self._steps.move_to_end(key)
            graph.launch()
            return
        for part in parts:
            if part.graph is None:
                part.enqueue()
            else:
                part.graph.launch()
        self._device.synchronize()
        if len(self._steps) < MOST_GRAPHS or key in self._seen:
            self._keep(key, parts)
        else:
            self._see(key)
            self._capture_parts(parts)

    def clear(self) -> None:
        """Destroy graphs, parts and bindings, so that memory to which they refer may be freed."""
        for graph in self._steps.values():
            graph.destroy()
        self._steps.clear()
        self._seen.clear()
        for part in self.parts.values():
            if part.graph is not None:
                part.graph.destroy()
        self.parts.clear()
        for binding in self._bindings:
            binding.release()
        self._bindings.clear()

    def _keep(self, key: Hashable, parts: Sequence[StepPart]) -> None:
        def enqueue() -> None:
            for part in parts:
                part.enqueue()

        graph = self._capture.capture(enqueue)
        if graph is None:
            return
        self._seen.pop(key, None)
        self._steps[key] = graph
        if len(self._steps) > MOST_GRAPHS:
            self._steps.popitem(last=False)[1].destroy()

    def _see(self, key: Hashable) -> None:
        self._seen[key] = None
        if len(self._seen) > _MOST_SEEN:
            self._seen.popitem(last=False)

    def _capture_parts(self, parts: Sequence[StepPart]) -> None:
        for part in parts:
            if part.graph is None:
                part.graph = self._capture.capture(part.enqueue)


# Parts of steps that stay bound, per layer and number of rows; beyond that, all are bound anew.
# Caches that do not move need two or three: one for gathered rows, and one for each layer that may
# have run before; calls of fewer rows have caches of their own.
_KEPT_PARTS = 16

SlotCaches = Callable[[int, int], tuple[Tensor, Tensor]]
"""Returns key and value [rows, N, T, W] of a layer's first slots, for a layer and rows."""


@dataclass(frozen=True)
class DeviceEngines:
    """The engines that a step enqueues; the layers are those for the slots' capacity.

    ``candidates`` is None if the results hold all logits of the head.
    """

    memory: DeviceMemory
    embed: EngineSession
    layers: Sequence[EngineSession]
    head: EngineSession
    candidates: EngineSession | None


class DeviceSteps:
    """Runs steps of up to ``max_rows`` rows of ``width`` tokens; slots have ``capacity`` positions.

    A layer is bound to the first n slots of one buffer, with n padded to a power of two: what a
    step writes beyond its rows lies in free slots, which the next row's prompt overwrites. Steps
    are graphs, keyed by the padded numbers of rows of the layers that run and by the addresses of
    their caches; the rows' numbers, positions and slots are data. ``mask`` is the capacity again
    for engines that take a mask.

    ONNX Runtime's own attention takes several tokens after a past for one row only, so its layers
    are then called row by row.
    """

    def __init__(
        self,
        engines: DeviceEngines,
        results: StepResults,
        capture: GraphCapture,
        *,
        max_rows: int,
        width: int,
        padded_rows: Callable[[int], int],
        capacity: int,
        mask: int | None,
    ) -> None:
        self._engines = engines
        self._num_layers = len(engines.layers)
        self.results = results
        self._width = width
        self._max_rows = max_rows
        self._padded_rows = padded_rows
        self._capacity = capacity
        memory = engines.memory
        embed = engines.embed.spec
        self._rows = DeviceRows(memory, embed, self._num_layers, max_rows, width, mask)
        self._last: tuple[StepLayout, list[StepPart]] | None = None
        self.graphs = StepGraphs(memory.device, capture)

    def enqueue(
        self,
        layout: StepLayout,
        rows: Sequence[StepRow],
        caches: SlotCaches,
        token_addresses: Mapping[int, int] | None = None,
    ) -> ComingLogits:
        """Enqueue a step of ``rows``; return the coming logits of their tokens, in order.

        The layers that run are those of ``layout``; the same object also implies the same caches.
        ``token_addresses`` has the addresses of tokens to feed by row number, see
        `DeviceRows.fill`. At most two steps may be enqueued at once.
        """
        self._rows.fill(layout, rows, token_addresses or {})
        parts = self._parts_of(layout, caches)
        self._rows.upload()
        self.graphs.enqueue(parts)
        return self.results.download(sum(len(row.tokens) for row in rows))

    def keep(self, target: int, indices: int, count: int) -> None:
        """Enqueue the copy of states of the last step, see `DeviceRows.keep`."""
        self._rows.keep(target, indices, count)

    def clear(self) -> None:
        """Destroy all graphs and bindings."""
        self.graphs.clear()
        self._last = None

    def _parts_of(self, layout: StepLayout, caches: SlotCaches) -> list[StepPart]:
        """Return the embedding, the layers that run and the head, each on its rows."""
        if self._last is not None and self._last[0] is layout:
            return self._last[1]
        if (
            len(self.graphs.parts)
            > _KEPT_PARTS * (self._num_layers + 2) * self._max_rows.bit_length()
        ):
            self.clear()
        rows = self._padded_rows(len(layout.order))
        parts = [self._embed_part(rows)]
        source = 0
        for layer, count in layout.layers:
            source = source if layout.is_aligned else GATHERED
            padded = self._padded_rows(count)
            parts.append(self._layer_part(layer, padded, source, caches(layer, padded)))
            source = layer + 1
        parts.append(self._head_part(rows, source if layout.is_aligned else GATHERED))
        self._last = layout, parts
        return parts

    def _embed_part(self, rows: int) -> StepPart:
        def make() -> list[_Work]:
            tensors = self._rows.embed_tensors(rows)
            prepare = partial(self._rows.prepare, rows)
            return [prepare, self.graphs.bind(self._engines.embed, tensors)]

        return self._part(("embed", rows), make)

    def _layer_part(
        self, layer: int, rows: int, source: int, cache: tuple[Tensor, Tensor]
    ) -> StepPart:
        """Return a layer's part; ``source`` is the section of hidden states that it reads."""
        key, value = (borrowed(tensor) for tensor in cache)

        def make() -> list[_Work]:
            return [
                *self._gathering(layer, rows, source),
                *self._layer_runs(layer, rows, source, key, value),
            ]

        return self._part((layer, rows, source, key.address, value.address), make)

    def _layer_runs(
        self, layer: int, rows: int, source: int, key: DeviceTensor, value: DeviceTensor
    ) -> list[_Work]:
        """Return the layer's call on all rows, or one per row."""
        session = self._engines.layers[layer]
        row_by_row = self._width > 1 and TensorRole.SEQLENS_K in session.spec.roles
        count = 1 if row_by_row else rows
        # A graph would fix the length of the longest row, so the capacity, its bound, is used.
        total = np.array(self._capacity, np.int32)
        return [
            self.graphs.bind(
                session,
                {
                    **self._rows.layer_tensors(layer, source, count, first),
                    **cache_tensors(key[first : first + count], value[first : first + count]),
                    TensorRole.TOTAL_SEQUENCE_LENGTH: total,
                },
            )
            for first in range(0, rows, count)
        ]

    def _head_part(self, rows: int, source: int) -> StepPart:
        def make() -> list[_Work]:
            results: dict[TensorRole, Tensor] = dict(self.results.tensors(rows * self._width))
            head = self.graphs.bind(
                self._engines.head, self._rows.head_tensors(source, rows) | results
            )
            gathering = self._gathering(self._num_layers, rows, source)
            chosen = self._engines.candidates
            candidates = [] if chosen is None else [self.graphs.bind(chosen, results)]
            return [*gathering, head, *candidates]

        return self._part(("head", rows, source), make)

    def _gathering(self, layer: int, rows: int, source: int) -> list[_Work]:
        return [partial(self._rows.gather, layer, rows)] if source == GATHERED else []

    def _part(self, key: Hashable, make: Callable[[], list[_Work]]) -> StepPart:
        parts = self.graphs.parts
        if key not in parts:
            parts[key] = StepPart(key, make())
        return parts[key]


def borrowed(tensor: Tensor) -> DeviceTensor:
    """Return the same memory without a reference to its buffer, whose lifetime the pool decides."""
    owned = cast(DeviceTensor, tensor)
    return replace(owned, buffer=DeviceBuffer(owned.address, owned.nbytes))
