"""Runs TensorRT's plans on their device for verification, in pieces that their profiles take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np

from ...engines.backends.device import DeviceMemory
from ...engines.backends.session import EngineBackend, EngineSession, open_backend
from ...engines.bundle import EngineBundle
from ...engines.errors import EnvironmentMismatchError
from ...engines.host.gpus import survey_gpus
from ...engines.manifest import BuildSpec, EngineSpec, KVBucket, TensorRole
from ...engines.memory import Array, DeviceTensor
from .calls import EngineCalls, placing


class DeviceCalls(EngineCalls):
    """One plan, called with host arrays of any size.

    Rows and tokens beyond what ``build`` allows go in one piece after another: long prompts are
    continued where the last piece ended, which the engines' contract allows.
    """

    def __init__(
        self,
        session: EngineSession,
        backend: EngineBackend,
        build: BuildSpec,
        bucket: KVBucket | None,
    ) -> None:
        self._session = session
        self._memory = cast(DeviceMemory, backend.memory)
        self._build = build
        self._capacity = build.max_prompt_len if bucket is None else bucket.capacity

    def embed(self, input_ids: Array, position_ids: Array) -> Array:
        """See EngineCalls."""
        size = self._size(TensorRole.HIDDEN_STATES_OUT)
        pieces = []
        ids, positions = input_ids.reshape(1, -1), position_ids.reshape(1, -1)
        for tokens in _pieces(ids.shape[1], self._build.max_prompt_len):
            inputs = {
                TensorRole.INPUT_IDS: ids[:, tokens],
                TensorRole.POSITION_IDS: positions[:, tokens],
            }
            shape = (1, tokens.stop - tokens.start, size)
            pieces.append(self._run(inputs, TensorRole.HIDDEN_STATES_OUT, shape))
        return np.concatenate(pieces, axis=1).reshape(*input_ids.shape, size)

    def layer(self, hidden_states: Array, key: Array, value: Array, starts: Array) -> Array:
        """See EngineCalls. Caches are as long as the plan's while it runs."""
        output = np.empty_like(hidden_states)  # [B, S, E]
        num_tokens = hidden_states.shape[1]
        build = self._build
        rows_at_once = build.max_batch_size if num_tokens == 1 else build.max_prefill_rows
        longest = min(build.max_prompt_len, self._capacity)
        for rows in _pieces(len(hidden_states), rows_at_once):
            caches = [self._upload(self._extended(cache[rows])) for cache in (key, value)]
            for tokens in _pieces(num_tokens, longest):
                states = hidden_states[rows, tokens]
                places = placing(starts[rows] + tokens.start, states.shape[1], self._capacity)
                asked = {role: places[role] for role in self._session.spec.roles & places.keys()}
                output[rows, tokens] = self._run(
                    {TensorRole.HIDDEN_STATES: states, **asked},
                    TensorRole.HIDDEN_STATES_OUT,
                    states.shape,
                    {
                        TensorRole.PAST_KEY: caches[0],
                        TensorRole.PRESENT_KEY: caches[0],
                        TensorRole.PAST_VALUE: caches[1],
                        TensorRole.PRESENT_VALUE: caches[1],
                    },
                )
            for cache, device_cache in zip((key, value), caches, strict=True):
                kept = min(cache.shape[2], self._capacity)
                cache[rows, :, :kept] = self._download(device_cache)[:, :, :kept]
        return output

    def head(self, hidden_states: Array, row_positions: Array) -> Array:
        """See EngineCalls; every row is gathered from the piece that holds it."""
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
                logits[row] = self._run(inputs, TensorRole.LOGITS, (1, vocab_size))
        return logits

    def candidates(self, logits: Array) -> tuple[Array, Array]:
        """See EngineCalls."""
        count = self._size(TensorRole.TOP_LOGITS)
        top_logits, top_token_ids = [], []
        for rows in _pieces(len(logits), self._build.max_batch_size):
            shape = (rows.stop - rows.start, count)
            values = self._memory.empty(shape, "float32")
            inputs = {TensorRole.LOGITS: logits[rows]}
            top_token_ids.append(
                self._run(inputs, TensorRole.TOP_TOKEN_IDS, shape, {TensorRole.TOP_LOGITS: values})
            )
            top_logits.append(self._download(values))
        return np.concatenate(top_logits), np.concatenate(top_token_ids)

    def _run(
        self,
        inputs: Mapping[TensorRole, Array],
        output: TensorRole,
        shape: tuple[int, ...],
        on_device: Mapping[TensorRole, DeviceTensor] | None = None,
    ) -> Array:
        """Upload ``inputs``, run, and return ``output``; ``on_device`` is bound as it is."""
        result = self._memory.empty(shape, self._session.spec.tensor(output).dtype)
        uploaded = {role: self._upload(array) for role, array in inputs.items()}
        binding = self._session.bind({**uploaded, **(on_device or {}), output: result})
        binding.run()
        downloaded = self._download(result)
        binding.release()
        return downloaded

    def _upload(self, array: Array) -> DeviceTensor:
        device = self._memory.device
        tensor = self._memory.empty(array.shape, str(array.dtype))  # type: ignore[arg-type]
        pinned = device.pinned(tensor.nbytes)
        pinned[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        device.copy_to_device(tensor.address, pinned)
        device.synchronize()
        return tensor

    def _download(self, tensor: DeviceTensor) -> Array:
        device = self._memory.device
        pinned = device.pinned(tensor.nbytes)
        device.copy_to_host(pinned, tensor.address)
        device.synchronize()
        return pinned.copy().view(tensor.dtype).reshape(tensor.shape)

    def _extended(self, cache: Array) -> Array:
        """A copy of a cache [B, N, T, D] with the plan's T."""
        rows, num_heads, capacity, head_dim = cache.shape
        extended = np.zeros((rows, num_heads, self._capacity, head_dim), cache.dtype)
        kept = min(capacity, self._capacity)
        extended[:, :, :kept] = cache[:, :, :kept]
        return extended

    def _size(self, role: TensorRole) -> int:
        """The last, fixed dimension of a tensor."""
        return int(self._session.spec.tensor(role).shape[-1])


def _pieces(total: int, longest: int) -> list[slice]:
    """``range(total)`` in slices of at most ``longest``."""
    return [slice(start, min(start + longest, total)) for start in range(0, total, longest)]


@dataclass(frozen=True)
class PlanRunner:
    """A GPU with the library that the bundle's plans were built for; the caller closes it."""

    bundle: EngineBundle
    backend: EngineBackend

    def load(self, spec: EngineSpec, bucket: KVBucket | None) -> EngineCalls:
        """One plan, ready to be called."""
        build = self.bundle.manifest.build
        assert build is not None
        session = self.backend.load(self.bundle, spec, bucket)
        return DeviceCalls(session, self.backend, build, bucket)


def plan_runner(bundle: EngineBundle) -> PlanRunner | str:
    """What runs the plans of ``bundle`` on this machine, else the reason why nothing does."""
    try:
        backend = open_backend(bundle.manifest.target)
    except EnvironmentMismatchError as error:
        return error.problems[0] if survey_gpus().gpus else "no GPU here"
    try:
        backend.load(bundle, bundle.manifest.embed)
    except EnvironmentMismatchError as error:
        backend.close()
        return error.problems[0]
    return PlanRunner(bundle, backend)


def plans(bundle: EngineBundle) -> list[tuple[str, EngineSpec, KVBucket | None]]:
    """Name, engine and KV bucket of every plan."""
    return [
        (spec.name if bucket is None else f"{spec.name}.t{bucket.capacity}", spec, bucket)
        for spec in bundle.manifest.all_engines
        for bucket in (spec.buckets or (None,))
    ]
