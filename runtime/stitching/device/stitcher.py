"""DeviceStitcher: the engines of a bundle on a device, their prompts, and their memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from typing_extensions import override

from ....engines.backends.device import Device, DeviceMemory
from ....engines.backends.session import EngineSession
from ....engines.manifest import TensorRole
from ....engines.memory import Array, DeviceTensor, Tensor
from ...kv.cache import KVCache
from ..protocol import LayerCaches, Stitcher, cache_tensors, run_once
from .buffers import DeviceInputs, PromptBuffers, StepResults
from .steps import DeviceEngines, DeviceSteps, GraphCapture

LayerSessions = Callable[[int | None], Sequence[EngineSession]]
"""The layers' sessions for one static KV capacity, or for any (None)."""

# Steps are kept for so many capacities of slots, so that a call of another length in between does
# not drop them.
_KEPT_CAPACITIES = 4


class DeviceStitcher(Stitcher):
    """Holds engines that enqueue on one device, for `DeviceSlotStitcher`.

    ``layers(bucket)`` returns the layers' sessions for one static KV capacity, or for any (None). A
    step of n rows is padded to ``padded_rows(n)``. Memory is allocated at construction and with the
    first step of a capacity and width; buffers of prompts grow with the longest call.
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
        self.max_rows = max_rows
        self.padded_rows = padded_rows
        self._buffers = PromptBuffers(memory, embed.spec, head.spec)
        self._results = {1: self._new_results(1)}  # by width
        self._inputs = DeviceInputs(memory)
        self._prefix_inputs = DeviceInputs(memory)
        self.capture = GraphCapture(self.device)
        self._steps: OrderedDict[tuple[int, int | None], dict[int, DeviceSteps]] = OrderedDict()

    @property
    def num_graphs(self) -> int:
        """The number of steps that are kept as graphs."""
        kept = (steps for of_width in self._steps.values() for steps in of_width.values())
        return sum(len(steps.graphs) for steps in kept)

    def runs_several_tokens(self, bucket: int | None) -> bool:
        """Return True if steps may run several tokens per row; TensorRT's plans take one."""
        return self._mask_capacity(bucket) is None

    def steps(self, capacity: int, bucket: int | None, width: int) -> DeviceSteps:
        """Return the steps of ``width`` tokens per row over slots of ``capacity`` positions.

        Those of the last few capacities are kept.
        """
        key = capacity, bucket
        of_width = self._steps.setdefault(key, {})
        if width not in of_width:
            of_width[width] = self._new_steps(capacity, bucket, width)
        self._steps.move_to_end(key)
        if len(self._steps) > _KEPT_CAPACITIES:
            _clear(self._steps.popitem(last=False)[1])
        return of_width[width]

    def drop_graphs(self, capacity: int, bucket: int | None) -> None:
        """Destroy the graphs and bindings of all steps over slots of ``capacity`` positions."""
        _clear(self._steps.get((capacity, bucket), {}))

    @override
    def close(self) -> None:
        for of_width in self._steps.values():
            _clear(of_width)
        self._steps.clear()

    @override
    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        active_lengths: Sequence[Sequence[int]],
        bucket: int | None,
        caches: LayerCaches,
        after: Callable[[int], None],
    ) -> Array:
        padded = max(map(len, prompts))
        last = [index * padded + len(prompt) - 1 for index, prompt in enumerate(prompts)]
        states = self._run(prompts, 0, active_lengths, last, bucket, caches, after)
        return self._gather(states, self._inputs.device[TensorRole.ROW_POSITIONS])

    @override
    def chunk(
        self,
        tokens: Sequence[int],
        start: int,
        active_lengths: Sequence[int],
        bucket: int | None,
        caches: LayerCaches,
        *,
        is_last: bool,
    ) -> Array | None:
        active = [[max(0, min(length - start, len(tokens)))] for length in active_lengths]
        states = self._run([tokens], start, active, [len(tokens) - 1], bucket, caches)
        if is_last:
            return self._gather(states, self._inputs.device[TensorRole.ROW_POSITIONS])
        self.device.synchronize()  # the host's copy of the inputs may change from here on
        return None

    @override
    def score(
        self,
        cache: KVCache,
        tokens: Sequence[int],
        active_lengths: Sequence[int],
        positions: Sequence[int],
        chunk: int,
    ) -> Iterator[Array]:
        lengths = [[length] for length in active_lengths]
        scratch = cache.scratch(1)
        states = self._run([tokens], 0, lengths, [0], cache.plan.bucket, lambda _: scratch)
        inputs = self._inputs
        for start in range(0, len(positions), chunk):
            gathered = positions[start : start + chunk]
            self.device.synchronize()
            inputs.lay_out_tokens(1, 1, len(gathered), None)
            inputs.fill([[0]], [0], gathered)
            inputs.upload()
            yield self._gather(states, inputs.device[TensorRole.ROW_POSITIONS])

    def _run(
        self,
        prompts: Sequence[Sequence[int]],
        start: int,
        active_lengths: Sequence[Sequence[int]],
        gathered: Sequence[int],
        bucket: int | None,
        caches: LayerCaches,
        after: Callable[[int], None] = lambda layer: None,
    ) -> DeviceTensor:
        """Run each layer on its prefixes of what stands at ``start``; return the last states.

        Layers that run whole rows read one buffer and write the other. The others read and write
        copies of their prefixes, in the second halves of the buffers.
        """
        rows, padded = len(prompts), max(map(len, prompts))
        lengths = [len(prompt) for prompt in prompts]
        whole = [list(active) == lengths for active in active_lengths]
        capacity = self._mask_capacity(bucket)
        inputs = self._inputs
        inputs.lay_out_tokens(rows, padded, len(gathered), capacity)
        inputs.fill(prompts, [start] * rows, gathered)
        inputs.upload()
        buffers = self._buffers.hidden_states(rows if all(whole) else 2 * rows, padded)
        read, written = (buffer[:rows] for buffer in buffers)  # [rows, S, E] each
        run_once(self.embed, inputs.device | {TensorRole.HIDDEN_STATES_OUT: read})
        for layer, session in enumerate(self.layers(bucket)):
            active = active_lengths[layer]
            if whole[layer]:
                run_once(session, _tensors(inputs, start, *caches(layer), read, written))
                read, written = written, read
            elif any(active):
                prefixes = [_prefixes(buffer[rows:], max(active)) for buffer in buffers]
                self._prepare(self._prefix_inputs, prompts, start, active, capacity)
                self._copy_rows(prefixes[0], read, [max(active)] * rows)
                inputs_of = self._prefix_inputs
                run_once(session, _tensors(inputs_of, start, *caches(layer), *prefixes))
                self._copy_rows(read, prefixes[1], active)
            after(layer)
        return read

    def _prepare(
        self,
        inputs: DeviceInputs,
        prompts: Sequence[Sequence[int]],
        start: int,
        active: Sequence[int],
        capacity: int | None,
    ) -> None:
        """Upload a layer's inputs beside the first ``active[r]`` tokens of each row."""
        self.device.synchronize()  # the host's copy of the inputs is about to change
        inputs.lay_out_tokens(len(prompts), max(active), 1, capacity)
        tokens = [prompt[:length] for prompt, length in zip(prompts, active, strict=True)]
        inputs.fill(tokens, [start] * len(prompts), [0])
        inputs.upload()

    def _copy_rows(
        self, target: DeviceTensor, source: DeviceTensor, lengths: Sequence[int]
    ) -> None:
        """Copy the first ``lengths[r]`` tokens of each row; the two may be padded differently."""
        token_bytes = target.nbytes // (target.shape[0] * target.shape[1])
        for row, length in enumerate(lengths):
            width = length * token_bytes
            self.device.copy_strided(
                target.address + row * target.shape[1] * token_bytes,
                source.address + row * source.shape[1] * token_bytes,
                pitch=width,
                width=width,
                height=1,
            )

    def _new_steps(self, capacity: int, bucket: int | None, width: int) -> DeviceSteps:
        if width not in self._results:
            self._results[width] = self._new_results(width)
        return DeviceSteps(
            DeviceEngines(self.memory, self.embed, self.layers(bucket), self.head, self.candidates),
            self._results[width],
            self.capture,
            max_rows=self.max_rows,
            width=width,
            padded_rows=self.padded_rows,
            capacity=capacity,
            mask=self._mask_capacity(bucket),
        )

    def _new_results(self, width: int) -> StepResults:
        head, candidates = self.head.spec, self.candidates.spec
        return StepResults(self.memory, head, candidates, self.max_rows * width)

    def _gather(self, hidden_states: DeviceTensor, row_positions: DeviceTensor) -> Array:
        logits = self._buffers.logits(row_positions.shape[0])
        run_once(
            self.head,
            {
                TensorRole.HIDDEN_STATES: hidden_states,
                TensorRole.ROW_POSITIONS: row_positions,
                TensorRole.LOGITS: logits.device[TensorRole.LOGITS],
            },
        )
        logits.download()
        self.device.synchronize()
        return logits.host[TensorRole.LOGITS].copy()  # [R, V]

    def _mask_capacity(self, bucket: int | None) -> int | None:
        """Return T of the attention mask that the layers take, None if they take none."""
        takes_mask = TensorRole.ATTENTION_MASK in self.layers(bucket)[0].spec.roles
        assert bucket is not None or not takes_mask, "a mask needs a static capacity"
        return bucket if takes_mask else None


def _clear(of_width: Mapping[int, DeviceSteps]) -> None:
    for steps in of_width.values():
        steps.clear()


def _prefixes(states: DeviceTensor, length: int) -> DeviceTensor:
    """Return the memory of [rows, S, E] as dense [rows, ``length``, E]."""
    return replace(states, shape=(states.shape[0], length, states.shape[2]))


def _tensors(
    inputs: DeviceInputs,
    start: int,
    key: Tensor,
    value: Tensor,
    read: DeviceTensor,
    written: DeviceTensor,
) -> dict[TensorRole, Tensor]:
    """Return all inputs that a layer may have, by role."""
    return {
        **inputs.device,
        **cache_tensors(key, value),
        TensorRole.HIDDEN_STATES: read,
        TensorRole.HIDDEN_STATES_OUT: written,
        TensorRole.TOTAL_SEQUENCE_LENGTH: np.array(start + read.shape[1], np.int32),
    }
