"""Stitches engines on a device: a step is one upload, the plan's engines, one small download.

Hidden states never leave the device. Layers read one of two buffers and write the other, so a
bypassed layer is not enqueued and the next one reads what the last one wrote:

    plan (0, 4, 5):  embed → A   layer 0: A → B   layer 4: B → A   layer 5: A → B   head: B

Whole steps are captured as graphs, one per layer plan and number of rows, on the addresses of the
batch's caches; a batch whose caches lie elsewhere captures anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

import numpy as np

from ...engines.backends.device import Device, DeviceGraph, DeviceMemory
from ...engines.backends.session import Binding, EngineSession
from ...engines.manifest import EngineKind, TensorRole
from ...engines.memory import Array, DeviceBuffer, DeviceTensor, Tensor
from ..kv.cache import KVCache
from ..schedule import LayerPlan
from ..tokens.logits import CandidateLogits
from .device_buffers import DeviceBuffers, DeviceInputs
from .device_graphs import GraphCapture
from .device_prompts import DevicePrompts, LayerSessions, mask_capacity, passing
from .device_steps import DeviceEngines, DeviceSteps
from .stitcher import BatchStitcher, bind, cache_tensors

# Sets of cache addresses whose graphs are kept: calls of other sizes or schedules in between
# don't cost those of the calls around them.
_KEPT_PLACES = 4

_Addresses = tuple[tuple[int, int, int], ...]  # layer, address, capacity; key, then value


@dataclass
class _Step:
    """One layer plan for one number of rows, ready to be enqueued."""

    bindings: tuple[Binding, ...]
    graph: DeviceGraph | None = None


@dataclass
class _Place:
    """What is bound to one set of cache addresses."""

    bindings: dict[tuple[int, int, int], Binding] = field(default_factory=dict)
    """By layer, rows, and which buffer of hidden states is read."""
    steps: dict[tuple[tuple[int, ...], int], _Step] = field(default_factory=dict)
    """By the plan's layers, and rows."""

    def destroy(self) -> None:
        """Free graphs and bindings."""
        for step in self.steps.values():
            if step.graph is not None:
                step.graph.destroy()
        for binding in self.bindings.values():
            binding.release()


class DeviceStitcher(BatchStitcher):
    """Engines that enqueue on one device.

    ``layers(bucket)`` returns the layers' sessions for one static KV capacity, or for any (None).
    ``padded_rows(n)``: rows that a step of n rows runs on. All memory is allocated at construction
    but for prompts, whose buffers grow with the longest prefill call.
    """

    def __init__(
        self,
        memory: DeviceMemory,
        embed: EngineSession,
        layers: LayerSessions,
        head: EngineSession,
        candidates: EngineSession,
        max_rows: int,
        padded_rows: Callable[[int], int],
    ) -> None:
        self.memory = memory
        self.device: Device = memory.device
        self.embed = embed
        self.layers = layers
        self.head = head
        self.candidates = candidates
        self.padded_rows = padded_rows
        self.buffers = DeviceBuffers(memory, embed.spec, head.spec, candidates.spec, max_rows)
        self._step_inputs: dict[tuple[int, int | None], DeviceInputs] = {}
        self.prompts = DevicePrompts(memory, embed, layers, head, self.buffers)
        self._ends: dict[tuple[EngineKind, int, int | None, int], Binding] = {}
        self._places: OrderedDict[_Addresses, _Place] = OrderedDict()
        self._place = _Place()
        self.capture = GraphCapture(self.device)
        self.max_rows = max_rows
        self._steps: OrderedDict[tuple[int, int | None], DeviceSteps] = OrderedDict()

    @property
    def num_graphs(self) -> int:
        """Steps that are kept as graphs."""
        return sum(len(steps.graphs) for steps in self._steps.values())

    def decode(
        self, cache: KVCache, plan: LayerPlan, tokens: Sequence[int], positions: Sequence[int]
    ) -> CandidateLogits:
        """See Stitcher."""
        rows = self.padded_rows(len(tokens))
        inputs = self._inputs_of_step(rows, cache.plan.bucket)
        inputs.fill([(token,) for token in tokens], positions, range(len(tokens)))
        step = self._place.steps.get((plan.layers, rows))
        if step is None:
            step = self._place.steps[plan.layers, rows] = self._bind_step(cache, plan, inputs, rows)
            self._enqueue(inputs, step)
            self.device.synchronize()
            step.graph = self.capture.capture(partial(self._enqueue, inputs, step))
        elif step.graph is not None:
            step.graph.launch()
            self.device.synchronize()
        else:
            self._enqueue(inputs, step)
            self.device.synchronize()
        return self.buffers.candidate_logits(len(tokens))

    def retire(self, cache: KVCache, plan: LayerPlan) -> None:
        """See Stitcher. Nothing enqueued later touches the layers' caches; bindings hold only
        their addresses, for a batch to come that finds them there again.
        """
        kept = frozenset(plan.layers)
        for layer in range(len(cache.plan.capacities)):
            if layer not in kept and cache.is_live(layer):
                cache.retire(layer)

    def unbind(self) -> None:
        """See Stitcher: bindings hold addresses, not buffers, so there is nothing to drop."""

    def prefill(
        self,
        cache: KVCache,
        first_row: int,
        prompts: Sequence[Sequence[int]],
        active_lengths: Sequence[Sequence[int]],
    ) -> Array:
        """See Stitcher."""
        self._go_to(cache)
        rows = len(prompts)

        def caches(layer: int) -> tuple[Tensor, Tensor]:
            if cache.is_live(layer):
                return cache.rows(layer, first_row, first_row + rows)
            return cache.scratch(rows)

        return self.prompts.prefill(prompts, active_lengths, cache.plan.bucket, caches)

    def score(
        self,
        cache: KVCache,
        tokens: Sequence[int],
        active_lengths: Sequence[int],
        positions: Sequence[int],
        chunk: int,
    ) -> Iterator[Array]:
        """See Stitcher."""
        return self.prompts.score(cache, tokens, active_lengths, positions, chunk)

    def steps(self, capacity: int, bucket: int | None) -> DeviceSteps:
        """Steps over slots of ``capacity`` positions; those of the last few are kept."""
        key = capacity, bucket
        if key not in self._steps:
            engines = DeviceEngines(
                self.memory, self.embed, self.layers(bucket), self.head, self.candidates
            )
            self._steps[key] = DeviceSteps(
                engines,
                self.buffers,
                self.capture,
                max_rows=self.max_rows,
                padded_rows=self.padded_rows,
                capacity=capacity,
                mask=mask_capacity(self.layers, bucket),
            )
        self._steps.move_to_end(key)
        if len(self._steps) > _KEPT_PLACES:
            self._steps.popitem(last=False)[1].clear()
        return self._steps[key]

    def close(self) -> None:
        """See Stitcher."""
        for steps in self._steps.values():
            steps.clear()
        self._steps.clear()
        for place in self._places.values():
            place.destroy()
        self._places.clear()
        for binding in self._ends.values():
            binding.release()
        self._ends.clear()

    def _inputs_of_step(self, rows: int, bucket: int | None) -> DeviceInputs:
        if (rows, bucket) not in self._step_inputs:
            inputs = DeviceInputs(self.memory)
            inputs.lay_out(rows, 1, rows, mask_capacity(self.layers, bucket))
            self._step_inputs[rows, bucket] = inputs
        return self._step_inputs[rows, bucket]

    def _bind_step(self, cache: KVCache, plan: LayerPlan, inputs: DeviceInputs, rows: int) -> _Step:
        """Bind every engine of the plan; a layer's binding serves all plans that reach it with
        the same buffer as input.
        """
        layers = [
            self._layer_binding(cache, layer, rows, index % 2, inputs)
            for index, layer in enumerate(plan.layers)
        ]
        ends = [
            self._end_binding(session, rows, cache.plan.bucket, parity, inputs)
            for session, parity in (
                (self.embed, 0),
                (self.head, len(plan.layers) % 2),
                (self.candidates, 0),
            )
        ]
        return _Step((ends[0], *layers, *ends[1:]))

    def _end_binding(
        self,
        session: EngineSession,
        rows: int,
        bucket: int | None,
        parity: int,
        inputs: DeviceInputs,
    ) -> Binding:
        """Bind embed to write, or head to read, hidden states ``parity``; or the candidates."""
        place = (session.spec.kind, rows, bucket, parity)
        if place not in self._ends:
            hidden = self.buffers.hidden_states(rows)[parity]
            ends = {TensorRole.HIDDEN_STATES: hidden, TensorRole.HIDDEN_STATES_OUT: hidden}
            self._ends[place] = bind(session, inputs.tensors | self.buffers.results(rows) | ends)
        return self._ends[place]

    def _layer_binding(
        self, cache: KVCache, layer: int, rows: int, parity: int, inputs: DeviceInputs
    ) -> Binding:
        bindings, key_of = self._place.bindings, (layer, rows, parity)
        if key_of not in bindings:
            key, value = cache.rows(layer, 0, rows)
            capacity = cache.plan.capacities[layer]
            # The true longest row would be frozen into a graph; the capacity bounds it.
            bound = {TensorRole.TOTAL_SEQUENCE_LENGTH: np.array(capacity, np.int32)}
            bindings[key_of] = bind(
                self.layers(cache.plan.bucket)[layer],
                inputs.tensors
                | cache_tensors(_borrowed(key), _borrowed(value))
                | passing(self.buffers.hidden_states(rows), parity)
                | bound,
            )
        return bindings[key_of]

    def _enqueue(self, inputs: DeviceInputs, step: _Step) -> None:
        inputs.upload()
        for binding in step.bindings:
            binding.run()
        self.buffers.download()

    def _go_to(self, cache: KVCache) -> None:
        """Use the graphs and bindings of the addresses at which the caches lie."""
        addresses = tuple(
            (layer, cast(DeviceTensor, tensor).address, capacity)
            for layer, capacity in enumerate(cache.plan.capacities)
            if cache.is_live(layer)
            for tensor in cache.rows(layer, 0, 1)
        )
        self._place = self._places.setdefault(addresses, _Place())
        self._places.move_to_end(addresses)
        if len(self._places) > _KEPT_PLACES:
            self._places.popitem(last=False)[1].destroy()


def _borrowed(tensor: Tensor) -> DeviceTensor:
    """The same address, without keeping its buffer: the pool decides how long that lives."""
    owned = cast(DeviceTensor, tensor)
    return replace(owned, buffer=DeviceBuffer(owned.address, owned.nbytes))
