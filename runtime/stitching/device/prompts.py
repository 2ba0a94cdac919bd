"""DevicePrompts: prefill and teacher-forced scoring on a device, one call of each engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from ....engines.backends.device import Device, DeviceMemory
from ....engines.backends.session import EngineSession
from ....engines.manifest import TensorRole
from ....engines.memory import Array, DeviceTensor, Tensor
from ...kv.cache import KVCache
from ..bindings import cache_tensors, run_once
from ..protocol import LayerCaches, do_nothing
from .buffers import DeviceBuffers, DeviceInputs

LayerSessions = Callable[[int | None], Sequence[EngineSession]]
"""The layers' sessions for one static KV capacity, or for any (None)."""


class DevicePrompts:
    """Runs prompts, each layer on the tokens that run it.

    Its inputs grow with the longest call, ``buffers`` hold the rest.
    """

    def __init__(
        self,
        memory: DeviceMemory,
        embed: EngineSession,
        layers: LayerSessions,
        head: EngineSession,
        buffers: DeviceBuffers,
    ) -> None:
        self._device: Device = memory.device
        self._embed = embed
        self._layers = layers
        self._head = head
        self._buffers = buffers
        self._inputs = DeviceInputs(memory)
        self._prefix_inputs = DeviceInputs(memory)

    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        active_lengths: Sequence[Sequence[int]],
        bucket: int | None,
        caches: LayerCaches,
        after: Callable[[int], None] = do_nothing,
    ) -> Array:
        """Run prompts into empty caches of capacity ``bucket``, see `HostPrompts.prefill`.

        ``caches(layer)`` says where a layer writes, and ``after(layer)`` is told when it has.
        Returns logits float32 [rows, V] of each prompt's last token, newly allocated.
        """
        padded = max(map(len, prompts))
        last = [index * padded + len(prompt) - 1 for index, prompt in enumerate(prompts)]
        states = self._run(prompts, 0, active_lengths, last, bucket, caches, after)
        return self._gather(states, self._inputs.tensors[TensorRole.ROW_POSITIONS])

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
        """Run ``tokens`` of one prompt, from position ``start`` on, on its caches.

        ``active_lengths[l]``: the prompt's tokens that layer l runs, from its first on. Returns
        logits float32 [1, V] of the last token if this is the prompt's last chunk.
        """
        active = [[max(0, min(length - start, len(tokens)))] for length in active_lengths]
        states = self._run([tokens], start, active, [len(tokens) - 1], bucket, caches)
        if is_last:
            return self._gather(states, self._inputs.tensors[TensorRole.ROW_POSITIONS])
        self._device.synchronize()  # the host's copy of the inputs may change from here on
        return None

    def score(
        self,
        cache: KVCache,
        tokens: Sequence[int],
        active_lengths: Sequence[int],
        positions: Sequence[int],
        chunk: int,
    ) -> Iterator[Array]:
        """See Stitcher.score."""
        lengths = [[length] for length in active_lengths]
        scratch = cache.scratch(1)
        states = self._run([tokens], 0, lengths, [0], cache.plan.bucket, lambda _: scratch)
        inputs = self._inputs
        for start in range(0, len(positions), chunk):
            gathered = positions[start : start + chunk]
            self._device.synchronize()
            inputs.lay_out(1, 1, len(gathered), None)
            inputs.fill([[0]], [0], gathered)
            inputs.upload()
            yield self._gather(states, inputs.tensors[TensorRole.ROW_POSITIONS])

    def _run(
        self,
        prompts: Sequence[Sequence[int]],
        start: int,
        active_lengths: Sequence[Sequence[int]],
        gathered: Sequence[int],
        bucket: int | None,
        caches: LayerCaches,
        after: Callable[[int], None] = do_nothing,
    ) -> DeviceTensor:
        """Run each layer on its prefixes of what stands at ``start``; return the last states.

        Layers that run whole rows read one buffer and write the other. The others read and write
        copies of their prefixes, in the second halves of the buffers.
        """
        rows, padded = len(prompts), max(map(len, prompts))
        lengths = [len(prompt) for prompt in prompts]
        whole = [list(active) == lengths for active in active_lengths]
        capacity = mask_capacity(self._layers, bucket)
        inputs = self._inputs
        inputs.lay_out(rows, padded, len(gathered), capacity)
        inputs.fill(prompts, [start] * rows, gathered)
        inputs.upload()
        buffers = self._buffers.prompt_hidden_states(rows if all(whole) else 2 * rows, padded)
        read, written = (buffer[:rows] for buffer in buffers)  # [rows, S, E] each
        run_once(self._embed, inputs.tensors | {TensorRole.HIDDEN_STATES_OUT: read})
        for layer, session in enumerate(self._layers(bucket)):
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
        self._device.synchronize()  # the host's copy of the inputs is about to change
        inputs.lay_out(len(prompts), max(active), 1, capacity)
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
            self._device.copy_strided(
                target.address + row * target.shape[1] * token_bytes,
                source.address + row * source.shape[1] * token_bytes,
                pitch=width,
                width=width,
                height=1,
            )

    def _gather(self, hidden_states: DeviceTensor, row_positions: DeviceTensor) -> Array:
        logits = self._buffers.prompt_logits(row_positions.shape[0])
        run_once(
            self._head,
            {
                TensorRole.HIDDEN_STATES: hidden_states,
                TensorRole.ROW_POSITIONS: row_positions,
                TensorRole.LOGITS: logits.device[TensorRole.LOGITS],
            },
        )
        logits.download()
        self._device.synchronize()
        return logits.host[TensorRole.LOGITS].copy()  # [R, V]


def mask_capacity(layers: LayerSessions, bucket: int | None) -> int | None:
    """Return T of the attention mask that the layers take, None if they take none."""
    takes_mask = TensorRole.ATTENTION_MASK in layers(bucket)[0].spec.roles
    assert bucket is not None or not takes_mask, "a mask needs a static capacity"
    return bucket if takes_mask else None


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
        **inputs.tensors,
        **cache_tensors(key, value),
        TensorRole.HIDDEN_STATES: read,
        TensorRole.HIDDEN_STATES_OUT: written,
        TensorRole.TOTAL_SEQUENCE_LENGTH: np.array(start + read.shape[1], np.int32),
    }
