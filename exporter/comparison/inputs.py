"""What engines read: tensors as a generation makes them, or as one was recorded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ...engines.backends.recording import Recording
from ...engines.errors import UsageError
from ...engines.manifest import EngineKind, EngineSpec, ModelSpec, TensorRole
from ...engines.memory import Array
from ..verification.caches import placing

_CACHES = (
    (TensorRole.PAST_KEY, TensorRole.PRESENT_KEY),
    (TensorRole.PAST_VALUE, TensorRole.PRESENT_VALUE),
)
_PROMPT_LENGTHS = (32, 5, 17)  # a ragged prompt, padded on the right, then single tokens
_DECODE_STEPS = 2
_RECORDED_ROLES = {
    EngineKind.EMBED: {TensorRole.INPUT_IDS, TensorRole.POSITION_IDS},
    EngineKind.LAYER: {
        TensorRole.HIDDEN_STATES,
        TensorRole.PAST_KEY,
        TensorRole.PAST_VALUE,
    },
    EngineKind.HEAD: {TensorRole.HIDDEN_STATES, TensorRole.ROW_POSITIONS},
}


# What says where recorded tokens stand: of ONNX Runtime's operators, or of skipdec's.
_PLACING = (TensorRole.SEQLENS_K, TensorRole.WRITE_INDICES)


@dataclass(frozen=True)
class EngineCall:
    """One call of an engine: S tokens in each of B rows, those of row b from ``starts[b]`` on.

    ``starts`` and ``lengths`` are int64 [B]; of row b the first ``lengths[b]`` tokens count, the
    rest is padding. ``tensors`` are the inputs by role but for what says where tokens stand; caches
    [B, N, T, D] are zero where nothing was written.
    """

    step: int
    starts: Array
    lengths: Array
    num_tokens: int  # S
    tensors: Mapping[TensorRole, Array]

    def feed(self, spec: EngineSpec, capacity: int) -> dict[str, Array]:
        """The inputs of ``spec`` by name, in its dtypes; caches are of ``capacity`` positions."""
        given = dict(self.tensors)
        if spec.kind is EngineKind.LAYER:
            given = placing(self.starts, self.num_tokens, capacity) | given
            for past, _ in _CACHES:
                given[past] = _resized(given[past], capacity)
        return {
            tensor.name: np.ascontiguousarray(given[tensor.role], tensor.dtype)
            for tensor in spec.inputs
        }

    def counted(self, role: TensorRole | None, array: Array) -> Array | None:
        """What counts of an output [tokens, ...], without padding; ``role`` None: an inner tensor.

        None for an inner tensor that has not a row for each token.
        """
        shape = (len(self.starts), self.num_tokens)
        if role in (TensorRole.PRESENT_KEY, TensorRole.PRESENT_VALUE):
            written = np.arange(array.shape[2]) < (self.starts + self.lengths)[:, None]  # [B, T]
            return array.swapaxes(1, 2)[written]
        if role is TensorRole.LOGITS:
            return array
        if array.shape[:2] != shape:
            return None
        return array[np.arange(self.num_tokens) < self.lengths[:, None]]


class Inputs(ABC):
    """Where the inputs of engines come from, one engine after the other."""

    @abstractmethod
    def positions(self, spec: EngineSpec) -> int:
        """The most positions that a call of one engine reaches; 0 if there is no call."""

    @abstractmethod
    def calls(self, spec: EngineSpec) -> Iterator[EngineCall]:
        """The calls of one engine; each may need what the one before wrote."""

    @abstractmethod
    def absorb(self, call: EngineCall, outputs: Mapping[TensorRole, Array]) -> None:
        """Hear what an engine made of ``call``, before the next is asked for."""


class RandomInputs(Inputs):
    """Random tokens, then what each engine wrote for the next: a prompt and two steps."""

    def __init__(self, model: ModelSpec, seed: int, max_rows: int, max_prompt_len: int) -> None:
        room = min(model.max_seq_len - _DECODE_STEPS, max_prompt_len)
        if room < 1:
            raise UsageError("max_seq_len", f"is {model.max_seq_len}; a comparison needs 3 or more")
        lengths = np.minimum(_PROMPT_LENGTHS[:max_rows], room)
        rng = np.random.default_rng(seed)
        rows, padded = len(lengths), int(lengths.max())
        self._model = model
        self._steps = [(np.zeros(rows, np.int64), lengths, padded)]
        for step in range(_DECODE_STEPS):
            self._steps.append((lengths + step, np.ones(rows, np.int64), 1))
        self._tokens = [
            rng.integers(0, model.vocab_size, (rows, count)) for _, _, count in self._steps
        ]
        self._hidden: dict[int, Array] = {}  # step → [B, S, E], what the next engine reads
        self._caches: dict[TensorRole, Array] = {}  # of the engine at hand

    def positions(self, spec: EngineSpec) -> int:
        """See Inputs."""
        starts, _, num_tokens = self._steps[-1]
        return int(starts.max()) + num_tokens

    def calls(self, spec: EngineSpec) -> Iterator[EngineCall]:
        """See Inputs."""
        if spec.kind is EngineKind.LAYER:
            rows, model = len(self._steps[0][0]), self._model
            shape = (rows, model.num_kv_heads, self.positions(spec), model.head_dim)
            for past, _ in _CACHES:
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
        return hidden | {
            TensorRole.ROW_POSITIONS: np.arange(len(starts)) * num_tokens + lengths - 1
        }

    def absorb(self, call: EngineCall, outputs: Mapping[TensorRole, Array]) -> None:
        """See Inputs; arrays are copied, and those of ``call`` stay as they are."""
        if TensorRole.HIDDEN_STATES_OUT in outputs:
            hidden = outputs[TensorRole.HIDDEN_STATES_OUT].copy()
            hidden[np.arange(call.num_tokens) >= call.lengths[:, None]] = 0  # padding means nothing
            self._hidden[call.step] = hidden
        for past, present in _CACHES:
            if present in outputs:
                ends = call.starts + call.lengths  # [B]
                self._caches[past] = _written(outputs[present], ends, self._caches[past].shape[2])


class RecordedInputs(Inputs):
    """The calls of a generation, as ``skipdec generate --record`` kept them."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._positions: dict[str, int] = {}  # by engine: asked for often, and all calls are read

    def positions(self, spec: EngineSpec) -> int:
        """See Inputs."""
        if spec.name not in self._positions:
            reached = (int(call.starts.max()) + call.num_tokens for call in self.calls(spec))
            self._positions[spec.name] = max(reached, default=0)
        return self._positions[spec.name]

    def calls(self, spec: EngineSpec) -> Iterator[EngineCall]:
        """See Inputs. Raises UsageError for a call that is not one of this engine."""
        for step, tensors in self._recording.calls(spec.name):
            if problems := list(_recorded_problems(spec, tensors)):
                raise UsageError(f"recording, step {step} of {spec.name}", *problems)
            if spec.kind is EngineKind.LAYER:
                yield _recorded_layer_call(step, tensors)
                continue
            first = (
                TensorRole.INPUT_IDS if spec.kind is EngineKind.EMBED else TensorRole.HIDDEN_STATES
            )
            rows, num_tokens = tensors[first].shape[:2]
            starts, lengths = np.zeros(rows, np.int64), np.full(rows, num_tokens)
            yield EngineCall(step, starts, lengths, num_tokens, tensors)

    def absorb(self, call: EngineCall, outputs: Mapping[TensorRole, Array]) -> None:
        """Nothing: the next engine's inputs are recorded too."""


@dataclass(frozen=True)
class RepeatedInputs(Inputs):
    """The calls of one engine that were made before."""

    made: tuple[EngineCall, ...]
    reached: int

    def positions(self, spec: EngineSpec) -> int:
        """See Inputs."""
        return self.reached

    def calls(self, spec: EngineSpec) -> Iterator[EngineCall]:
        """See Inputs."""
        return iter(self.made)

    def absorb(self, call: EngineCall, outputs: Mapping[TensorRole, Array]) -> None:
        """Nothing: there is no next engine."""


def _recorded_problems(spec: EngineSpec, tensors: Mapping[TensorRole, Array]) -> Iterator[str]:
    """What is not as a recording of this engine, for ONNX Runtime, has it."""
    expected = {tensor.role: tensor.shape for tensor in spec.inputs} | dict.fromkeys(
        _PLACING, ("B",)
    )
    needed = set(_RECORDED_ROLES[spec.kind])
    if spec.kind is EngineKind.LAYER:
        needed.add(next((role for role in _PLACING if role in tensors), _PLACING[0]))
    for role in sorted(needed):
        shape = expected[role]
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
    """A prompt from position 0 on, padded on the right, or one token a row behind the cache."""
    num_tokens = tensors[TensorRole.HIDDEN_STATES].shape[1]
    if TensorRole.SEQLENS_K in tensors:
        ends = tensors[TensorRole.SEQLENS_K].astype(np.int64) + 1  # [B]
        starts = np.zeros_like(ends) if num_tokens > 1 else ends - 1
    else:
        starts = tensors[TensorRole.WRITE_INDICES].astype(np.int64)
        ends = starts + num_tokens  # what pads a row is computed, too
    kept = dict(tensors)
    for past, _ in _CACHES:
        kept[past] = _written(tensors[past], starts, tensors[past].shape[2])
    return EngineCall(step, starts, ends - starts, num_tokens, kept)


def _written(cache: Array, ends: Array, capacity: int) -> Array:
    """A copy of [B, N, T, D] with ``capacity`` positions, zero from ``ends[b]`` on."""
    copy = _resized(cache, capacity).copy()
    unwritten = np.arange(capacity) >= ends[:, None]  # [B, T]
    copy.swapaxes(1, 2)[unwritten] = 0
    return copy


def _resized(cache: Array, capacity: int) -> Array:
    """[B, N, T, D] with ``capacity`` positions: cut, or filled with zeros."""
    missing = max(0, capacity - cache.shape[2])
    return np.pad(cache[:, :, :capacity], ((0, 0), (0, 0), (0, missing), (0, 0)))
