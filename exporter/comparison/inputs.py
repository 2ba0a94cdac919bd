"""Inputs of engines: tensors as a generation makes them, or as one was recorded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from ...engines.backends.recording import Recording
from ...engines.errors import UsageError
from ...engines.manifest import EngineKind, EngineSpec, ModelSpec, TensorRole
from ...engines.memory import Array
from ..verification.caches import PAST_OF, placing

_PROMPT_LENGTHS = (32, 5, 17)  # a ragged prompt, padded on the right, then single tokens
_DECODE_STEPS = 2
# Positions of recorded tokens: ONNX Runtime's operators take the first, skipdec's the second.
_PLACING = (TensorRole.SEQLENS_K, TensorRole.WRITE_INDICES)


@dataclass(frozen=True)
class EngineCall:
    """One call of an engine: S tokens in each of B rows, those of row b from ``starts[b]`` on.

    ``starts`` and ``lengths`` are int64 [B]; row b has ``lengths[b]`` tokens, then padding.
    ``tensors`` are the inputs by role except those that place tokens; caches [B, N, T, D] are zero
    at positions that were never written.
    """

    step: int
    starts: Array
    lengths: Array
    num_tokens: int  # S
    tensors: Mapping[TensorRole, Array]

    def feed(self, spec: EngineSpec, capacity: int) -> dict[str, Array]:
        """Return the inputs of ``spec`` by name, in its dtypes, with caches of ``capacity``."""
        given = dict(self.tensors)
        if spec.kind is EngineKind.LAYER:
            given = placing(self.starts, self.num_tokens, capacity) | given
            given |= {past: _resized(given[past], capacity) for past in PAST_OF.values()}
        return {
            tensor.name: np.asarray(given[tensor.role], tensor.dtype, order="C")
            for tensor in spec.inputs
        }

    def valid(self, name: str, array: Array) -> Array | None:
        """Return an output, or an inner tensor, as [tokens, ...] without padding.

        ``name`` is an output's role. Returns None for an inner tensor without a row per token.
        """
        if name in PAST_OF:
            written = np.arange(array.shape[2]) < (self.starts + self.lengths)[:, None]  # [B, T]
            return array.swapaxes(1, 2)[written]
        if name == TensorRole.LOGITS:
            return array
        if array.shape[:2] != (len(self.starts), self.num_tokens):
            return None
        return array[np.arange(self.num_tokens) < self.lengths[:, None]]


class Inputs(ABC):
    """A source of the calls of engines, which are asked for in the order of a step."""

    description: str

    @abstractmethod
    def positions(self, engine: str) -> int:
        """Return the number of positions that calls of an engine reach; 0 if it has no call."""

    @abstractmethod
    def calls(self, spec: EngineSpec) -> Iterator[EngineCall]:
        """Yield the calls of one engine; each may need the outputs of the one before."""

    @abstractmethod
    def absorb(self, call: EngineCall, outputs: Mapping[str, Array]) -> None:
        """Take the outputs of ``call``, by role, as inputs of later calls."""


class RandomInputs(Inputs):
    """A ragged prompt of random tokens and two steps; engines read what the last one wrote."""

    def __init__(self, model: ModelSpec, seed: int, max_rows: int, max_prompt_len: int) -> None:
        longest = min(model.max_seq_len - _DECODE_STEPS, max_prompt_len)
        if longest < 1:
            raise UsageError("max_seq_len", f"is {model.max_seq_len}; a comparison needs 3 or more")
        lengths = np.minimum(_PROMPT_LENGTHS[:max_rows], longest)
        rows = len(lengths)
        rng = np.random.default_rng(seed)
        self.description = f"random tokens, seed {seed}"
        self._model = model
        self._steps = [(np.zeros(rows, np.int64), lengths, int(lengths.max()))]
        for step in range(_DECODE_STEPS):
            self._steps.append((lengths + step, np.ones(rows, np.int64), 1))
        self._tokens = [rng.integers(0, model.vocab_size, (rows, n)) for _, _, n in self._steps]
        self._hidden: dict[int, Array] = {}  # step → [B, S, E], which the next engine reads
        self._caches: dict[TensorRole, Array] = {}  # of the current engine

    @override
    def positions(self, engine: str) -> int:
        starts, _, num_tokens = self._steps[-1]
        return int(starts.max()) + num_tokens

    @override
    def calls(self, spec: EngineSpec) -> Iterator[EngineCall]:
        if spec.kind is EngineKind.LAYER:
            model, rows = self._model, len(self._steps[0][0])
            shape = (rows, model.num_kv_heads, self.positions(spec.name), model.head_dim)
            for past in PAST_OF.values():
                self._caches[past] = np.zeros(shape, spec.tensor(past).dtype)
        for step, (starts, lengths, num_tokens) in enumerate(self._steps):
            yield EngineCall(step, starts, lengths, num_tokens, self._tensors(spec, step))

    def _tensors(self, spec: EngineSpec, step: int) -> dict[TensorRole, Array]:
        starts, lengths, num_tokens = self._steps[step]
        if spec.kind is EngineKind.EMBED:
            positions = starts[:, None] + np.arange(num_tokens)  # [B, S]
            return {TensorRole.INPUT_IDS: self._tokens[step], TensorRole.POSITION_IDS: positions}
        hidden = {TensorRole.HIDDEN_STATES: self._hidden[step]}
        if spec.kind is EngineKind.LAYER:
            return hidden | self._caches
        last_tokens = np.arange(len(starts)) * num_tokens + lengths - 1
        return hidden | {TensorRole.ROW_POSITIONS: last_tokens}

    @override
    def absorb(self, call: EngineCall, outputs: Mapping[str, Array]) -> None:
        if TensorRole.HIDDEN_STATES_OUT in outputs:
            hidden = outputs[TensorRole.HIDDEN_STATES_OUT].copy()
            hidden[np.arange(call.num_tokens) >= call.lengths[:, None]] = 0
            self._hidden[call.step] = hidden
        for present, past in PAST_OF.items():
            if present in outputs:
                capacity = self._caches[past].shape[2]
                ends = call.starts + call.lengths
                self._caches[past] = _cleared(_resized(outputs[present], capacity), ends)


class RecordedInputs(Inputs):
    """The calls of a generation, as ``skipdec generate --record`` saved them.

    Reads all calls of ``specs``. Raises UsageError for one that does not fit its engine.
    """

    def __init__(self, recording: Recording, specs: Iterable[EngineSpec]) -> None:
        self.description = (
            f"recorded in {recording.directory}, of bundle {recording.index.digest[:12]}, "
            f"{len(recording.index.calls)} calls"
        )
        self._recording = recording
        self._positions = {
            spec.name: max(
                (int(call.starts.max()) + call.num_tokens for call in self.calls(spec)), default=0
            )
            for spec in specs
        }

    @override
    def positions(self, engine: str) -> int:
        return self._positions[engine]

    @override
    def calls(self, spec: EngineSpec) -> Iterator[EngineCall]:
        for step, tensors in self._recording.calls(spec.name):
            if problems := list(_recorded_problems(spec, tensors)):
                raise UsageError(f"recording, step {step} of {spec.name}", *problems)
            if spec.kind is EngineKind.LAYER:
                yield _recorded_layer_call(step, tensors)
                continue
            is_embed = spec.kind is EngineKind.EMBED
            first = tensors[TensorRole.INPUT_IDS if is_embed else TensorRole.HIDDEN_STATES]
            rows, num_tokens = first.shape[:2]
            starts, lengths = np.zeros(rows, np.int64), np.full(rows, num_tokens)
            yield EngineCall(step, starts, lengths, num_tokens, tensors)

    @override
    def absorb(self, call: EngineCall, outputs: Mapping[str, Array]) -> None:
        pass  # the next engine's inputs are recorded, too


def _recorded_problems(spec: EngineSpec, tensors: Mapping[TensorRole, Array]) -> Iterator[str]:
    """Yield the differences from a recording of this engine for ONNX Runtime."""
    shapes = {tensor.role: tensor.shape for tensor in spec.inputs}
    if spec.kind is EngineKind.LAYER:
        place = next((role for role in _PLACING if role in tensors), _PLACING[0])
        shapes = {role: shapes[role] for role in (TensorRole.HIDDEN_STATES, *PAST_OF.values())}
        shapes[place] = ("B",)
    for role, shape in sorted(shapes.items()):
        if role not in tensors:
            yield f"has no {role}; record engines of target onnxruntime"
        elif len(shape) != (seen := tensors[role]).ndim or any(
            isinstance(size, int) and size != here
            for size, here in zip(shape, seen.shape, strict=True)
        ):
            yield f"{role} is {seen.shape}; the engine takes {shape}"
        elif not seen.size:
            yield f"{role} is empty"


def _recorded_layer_call(step: int, tensors: Mapping[TensorRole, Array]) -> EngineCall:
    """Return a call on a prompt from position 0 on, or on one token per row after its cache."""
    num_tokens = tensors[TensorRole.HIDDEN_STATES].shape[1]
    if TensorRole.SEQLENS_K in tensors:
        ends = tensors[TensorRole.SEQLENS_K].astype(np.int64) + 1  # [B]
        starts = np.zeros_like(ends) if num_tokens > 1 else ends - 1
    else:
        starts = tensors[TensorRole.WRITE_INDICES].astype(np.int64)
        ends = starts + num_tokens  # padding is computed, too
    caches = {past: _cleared(tensors[past], starts) for past in PAST_OF.values()}
    return EngineCall(step, starts, ends - starts, num_tokens, {**tensors, **caches})


def _cleared(cache: Array, ends: Array) -> Array:
    """Return a copy of [B, N, T, D] that is zero from position ``ends[b]`` on."""
    copy = cache.copy()
    copy.swapaxes(1, 2)[np.arange(cache.shape[2]) >= ends[:, None]] = 0
    return copy


def _resized(cache: Array, capacity: int) -> Array:
    """Return [B, N, T, D] with ``capacity`` positions: cut, or filled with zeros."""
    missing = max(0, capacity - cache.shape[2])
    return np.pad(cache[:, :, :capacity], ((0, 0), (0, 0), (0, missing), (0, 0)))
