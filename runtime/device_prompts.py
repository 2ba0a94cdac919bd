"""Whole prompts on a device: prefill and teacher-forced scoring, one call of each engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from ..engines.device import Device, DeviceMemory
from ..engines.manifest import TensorRole
from ..engines.memory import Array, DeviceTensor, Tensor
from ..engines.session import EngineSession
from .device_buffers import DeviceBuffers
from .device_inputs import DeviceInputs
from .kv_cache import KVCache
from .stitcher import cache_tensors, run_once

LayerSessions = Callable[[int | None], Sequence[EngineSession]]
"""The layers' sessions for one static KV capacity, or for any (None)."""


class DevicePrompts:
    """Runs prompts; its inputs grow with the longest call, ``buffers`` hold the rest."""

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

    def prefill(self, cache: KVCache, first_row: int, prompts: Sequence[Sequence[int]]) -> Array:
        """See Stitcher.prefill."""
        rows, padded = len(prompts), max(map(len, prompts))
        last = [index * padded + len(prompt) - 1 for index, prompt in enumerate(prompts)]
        inputs = self._inputs
        inputs.lay_out(rows, padded, rows, mask_capacity(self._layers, cache.plan.bucket))
        inputs.fill(prompts, [0] * rows, last)
        inputs.upload()
        hidden = self._buffers.prompt_hidden_states(rows, padded)
        run_once(self._embed, inputs.tensors | {TensorRole.HIDDEN_STATES_OUT: hidden[0]})
        for layer, session in enumerate(self._layers(cache.plan.bucket)):
            if cache.is_live(layer):
                key, value = cache.rows(layer, first_row, first_row + rows)
            else:
                key, value = cache.scratch(rows)
            run_once(
                session,
                inputs.tensors
                | cache_tensors(key, value)
                | passing(hidden, layer % 2)
                | {TensorRole.TOTAL_SEQUENCE_LENGTH: np.array(padded, np.int32)},
            )
        final = hidden[len(cache.plan.capacities) % 2]
        return self._gather(final, inputs.tensors[TensorRole.ROW_POSITIONS])

    def score(
        self,
        cache: KVCache,
        tokens: Sequence[int],
        active_lengths: Sequence[int],
        positions: Sequence[int],
        chunk: int,
    ) -> Iterator[Array]:
        """See Stitcher.score: a layer's result is copied back over the prefix that it read."""
        inputs = self._inputs
        capacity = mask_capacity(self._layers, cache.plan.bucket)
        key, value = cache.scratch(1)
        states, result = self._buffers.prompt_hidden_states(1, len(tokens))
        inputs.lay_out(1, len(tokens), 1, capacity)
        inputs.fill([tokens], [0], [0])
        inputs.upload()
        run_once(self._embed, inputs.tensors | {TensorRole.HIDDEN_STATES_OUT: states})
        sessions = self._layers(cache.plan.bucket)
        for session, length in zip(sessions, active_lengths, strict=True):
            self._device.synchronize()  # the host's copy of the inputs is about to change
            inputs.lay_out(1, length, 1, capacity)
            inputs.fill([tokens[:length]], [0], [0])
            inputs.upload()
            prefix, output = (_prefix(tensor, length) for tensor in (states, result))
            run_once(
                session,
                inputs.tensors
                | cache_tensors(key, value)
                | {TensorRole.HIDDEN_STATES: prefix, TensorRole.HIDDEN_STATES_OUT: output}
                | {TensorRole.TOTAL_SEQUENCE_LENGTH: np.array(length, np.int32)},
            )
            nbytes = prefix.nbytes
            self._device.copy_strided(
                prefix.address, output.address, pitch=nbytes, width=nbytes, height=1
            )
        for start in range(0, len(positions), chunk):
            gathered = positions[start : start + chunk]
            self._device.synchronize()
            inputs.lay_out(1, 1, len(gathered), None)
            inputs.fill([[0]], [0], gathered)
            inputs.upload()
            yield self._gather(states, inputs.tensors[TensorRole.ROW_POSITIONS])

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
    """T of the attention mask that the layers take, None if they take none."""
    takes_mask = TensorRole.ATTENTION_MASK in layers(bucket)[0].spec.roles
    assert bucket is not None or not takes_mask, "a mask needs a static capacity"
    return bucket if takes_mask else None


def passing(hidden: Sequence[DeviceTensor], parity: int) -> dict[TensorRole, Tensor]:
    """Read one buffer of hidden states, write the other."""
    return {
        TensorRole.HIDDEN_STATES: hidden[parity],
        TensorRole.HIDDEN_STATES_OUT: hidden[1 - parity],
    }


def _prefix(states: DeviceTensor, length: int) -> DeviceTensor:
    """The first ``length`` tokens of one row [1, S, E]."""
    return replace(states, shape=(1, length, states.shape[2]))
