"""Runs TensorRT plans for verification, in pieces that fit their profiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
from typing_extensions import override

from ...engines.backends.device import DeviceMemory
from ...engines.backends.session import EngineBackend, EngineSession, open_backend
from ...engines.bundle import EngineBundle
from ...engines.errors import EnvironmentMismatchError
from ...engines.host.gpus import survey_gpus
from ...engines.manifest import BuildSpec, DType, EngineSpec, KVBucket, TensorRole
from ...engines.memory import Array, Tensor
from ...runtime.stitching.device.buffers import Field, Staging
from ...runtime.stitching.protocol import cache_tensors, run_once
from .caches import position_inputs
from .calls import EngineCalls, output_shapes


class DeviceCalls(EngineCalls):
    """One plan, called with host arrays of any size.

    Rows and tokens beyond the limits of ``build`` run in further pieces: a long prompt continues
    where the last piece ended, which the engines' contract allows.
    """

    def __init__(
        self,
        session: EngineSession,
        memory: DeviceMemory,
        build: BuildSpec,
        bucket: KVBucket | None,
    ) -> None:
        self._session = session
        self._device = memory.device
        self._staging: Staging[TensorRole] = Staging(memory)
        self._caches: Staging[TensorRole] = Staging(memory)
        self._build = build
        self._capacity = build.max_prompt_len if bucket is None else bucket.capacity

    @override
    def embed(self, input_ids: Array, position_ids: Array) -> Array:
        size = self._size(TensorRole.HIDDEN_STATES_OUT)
        pieces = []
        ids, positions = input_ids.reshape(1, -1), position_ids.reshape(1, -1)
        for tokens in _pieces(ids.shape[1], self._build.max_prompt_len):
            inputs = {
                TensorRole.INPUT_IDS: ids[:, tokens],
                TensorRole.POSITION_IDS: positions[:, tokens],
            }
            pieces += self.run(inputs)
        return np.concatenate(pieces, axis=1).reshape(*input_ids.shape, size)

    def layer(self, hidden_states: Array, key: Array, value: Array, starts: Array) -> Array:
        """Run a layer, with caches resized to the plan's capacity during the call."""
        output = np.empty_like(hidden_states)  # [B, S, E]
        num_tokens = hidden_states.shape[1]
        build = self._build
        rows_at_once = build.max_batch_size if num_tokens == 1 else build.max_prefill_rows
        longest = min(build.max_prompt_len, self._capacity)
        caches = {TensorRole.PAST_KEY: key, TensorRole.PAST_VALUE: value}
        kept = min(key.shape[2], self._capacity)
        for rows in _pieces(len(hidden_states), rows_at_once):
            on_device = self._upload_caches(caches, rows, kept)
            for tokens in _pieces(num_tokens, longest):
                states = hidden_states[rows, tokens]
                operands = position_inputs(
                    starts[rows] + tokens.start, states.shape[1], self._capacity
                )
                inputs = {TensorRole.HIDDEN_STATES: states, **operands}
                (output[rows, tokens],) = self.run(inputs, on_device)
            self._caches.download()
            self._device.synchronize()
            for role, cache in caches.items():
                cache[rows, :, :kept] = self._caches.host[role][:, :, :kept]
        return output

    def head(self, hidden_states: Array, row_positions: Array) -> Array:
        """Run the head; each row is taken from the piece that contains it."""
        vocab_size = self._size(TensorRole.LOGITS)
        states = hidden_states.reshape(1, -1, hidden_states.shape[-1])  # [1, B*S, E]
        logits = np.empty((len(row_positions), vocab_size), np.float32)  # [R, V]
        for tokens in _pieces(states.shape[1], self._build.max_prompt_len):
            here = (row_positions >= tokens.start) & (row_positions < tokens.stop)  # [R]
            for row in np.flatnonzero(here):
                inputs = {
                    TensorRole.HIDDEN_STATES: states[:, tokens],
                    TensorRole.ROW_POSITIONS: row_positions[row : row + 1] - tokens.start,
                }
                (logits[row : row + 1],) = self.run(inputs)
        return logits

    @override
    def candidates(self, logits: Array) -> tuple[Array, Array]:
        slices = _pieces(len(logits), self._build.max_batch_size)
        pieces = [self.run({TensorRole.LOGITS: logits[rows]}) for rows in slices]
        top_logits, top_token_ids = map(np.concatenate, zip(*pieces, strict=True))
        return top_logits, top_token_ids

    @override
    def run(
        self,
        inputs: Mapping[TensorRole, Array],
        caches: Mapping[TensorRole, Tensor] | None = None,
    ) -> list[Array]:
        """Run on inputs within the limits; return the outputs except ``caches`` on the device."""
        spec, staging, kept = self._session.spec, self._staging, caches or {}
        inputs = {role: array for role, array in inputs.items() if role in spec.roles}
        outputs = [tensor for tensor in spec.outputs if tensor.role not in kept]
        fields = {role: _field(array, array.shape) for role, array in inputs.items()}
        shapes = output_shapes(spec, inputs)
        fields |= {each.role: Field(each.dtype, shapes[each.role]) for each in outputs}
        staging.lay_out(fields)
        for role, array in inputs.items():
            staging.host[role][...] = array
        staging.upload()
        run_once(self._session, {**staging.device, **kept})
        staging.download()
        self._device.synchronize()
        return [staging.host[tensor.role].copy() for tensor in outputs]

    def _upload_caches(
        self, caches: Mapping[TensorRole, Array], rows: slice, kept: int
    ) -> dict[TensorRole, Tensor]:
        """Upload the first ``kept`` positions of caches [B, N, T, D], padded to the plan's T."""
        num_rows = rows.stop - rows.start
        self._caches.lay_out(
            {
                role: _field(cache, (num_rows, cache.shape[1], self._capacity, cache.shape[3]))
                for role, cache in caches.items()
            }
        )
        for role, cache in caches.items():
            self._caches.host[role][...] = 0
            self._caches.host[role][:, :, :kept] = cache[rows, :, :kept]
        self._caches.upload()
        device = self._caches.device
        return cache_tensors(device[TensorRole.PAST_KEY], device[TensorRole.PAST_VALUE])

    def _size(self, role: TensorRole) -> int:
        """Return the last dimension of a tensor, which is fixed."""
        return int(self._session.spec.tensor(role).shape[-1])


def _field(array: Array, shape: tuple[int, ...]) -> Field:
    return Field(cast(DType, str(array.dtype)), shape)


def _pieces(total: int, longest: int) -> list[slice]:
    """Divide ``range(total)`` into slices of at most ``longest``."""
    return [slice(start, min(start + longest, total)) for start in range(0, total, longest)]


def plan_backend(bundle: EngineBundle) -> tuple[EngineBackend | None, str]:
    """Return a backend that runs the bundle's plans on this machine, which the caller closes.

    If there is none, return None and the reason.
    """
    try:
        backend = open_backend(bundle.manifest.target)
    except EnvironmentMismatchError as error:
        return None, error.problems[0] if survey_gpus().gpus else "no GPU here"
    try:
        backend.load(bundle, bundle.manifest.embed)
    except EnvironmentMismatchError as error:
        backend.close()
        return None, error.problems[0]
    return backend, ""


def plan_calls(
    bundle: EngineBundle, backend: EngineBackend, spec: EngineSpec, bucket: KVBucket | None
) -> EngineCalls:
    """Return one plan, ready to be called."""
    build = bundle.manifest.build
    assert build is not None
    session = backend.load(bundle, spec, bucket)
    return DeviceCalls(session, cast(DeviceMemory, backend.memory), build, bucket)


def plans(bundle: EngineBundle) -> list[tuple[str, EngineSpec, KVBucket | None]]:
    """Return name, engine and KV bucket of every plan."""
    return [
        (spec.name if bucket is None else f"{spec.name}.t{bucket.capacity}", spec, bucket)
        for spec in bundle.manifest.all_engines
        for bucket in (spec.buckets or (None,))
    ]
