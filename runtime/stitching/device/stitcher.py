"""DeviceStitcher: the engines of a bundle on a device, their prompts, and their memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np
from typing_extensions import override

from ....engines.backends.device import Device, DeviceMemory
from ....engines.backends.session import EngineSession
from ....engines.manifest import TensorRole
from ....engines.memory import Array, DeviceTensor, Tensor
from ...kv.limits import Limits
from ...tokens.logits import StepLogits
from ..drafts import DraftEngines
from ..protocol import LayerCaches, Stitcher, cache_tensors, run_once
from .buffers import (
    CandidateResults,
    DeviceInputs,
    NarrowResults,
    PromptBuffers,
    StepResults,
)
from .choices import DeviceChoice
from .steps import DeviceEngines, DeviceSteps, GraphCapture
from .trained import DeviceTrainedDrafts

LayerSessions = Callable[[int | None], Sequence[EngineSession]]
"""The layers' sessions for one static KV capacity, or for any (None)."""

# Steps are kept for several capacities of slots, so that a call of another length in between does
# not drop them.
_KEPT_CAPACITIES = 4


class StepKind(NamedTuple):
    """The kind of a step: ``width`` tokens per row, and which head.

    A draft step that runs the whole head is an ordinary step.
    """

    width: int = 1
    narrow: bool = False  # the narrow head in place of head and candidates


class DeviceStitcher(Stitcher):
    """Holds engines that enqueue on one device, for `DeviceSlotStitcher`.

    ``layers(bucket)`` returns the layers' sessions for one static KV capacity, or for any (None). A
    step of n rows is padded to ``padded_rows(n)``. Memory is allocated at construction and for the
    first step of each capacity and kind; buffers of prompts grow with the longest call.
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
        drafts: DraftEngines | None,
        load_choice: Callable[[], EngineSession | None],
    ) -> None:
        self.drafts = drafts
        self._load_choice = load_choice
        self.memory = memory
        self.device: Device = memory.device
        self.embed = embed
        self.layers = layers
        self.head = head
        self.candidates = candidates
        self.max_rows = max_rows
        self.padded_rows = padded_rows
        self._buffers = PromptBuffers(memory, embed.spec, head.spec)
        self.results = CandidateResults(memory, head.spec, candidates.spec, max_rows)
        # By kind; the first are those of steps of one token per row.
        self._results: dict[StepKind, StepResults] = {StepKind(): self.results}
        # Prompts have memory of their own, because a step whose results are read later may run.
        self._prompt_results = CandidateResults(memory, head.spec, candidates.spec, max_rows)
        self._inputs = DeviceInputs(memory)
        self._prefix_inputs: list[DeviceInputs] = []
        self.capture = GraphCapture(self.device)
        self._steps: OrderedDict[tuple[int, int | None], _StepsByKind] = OrderedDict()

    @cached_property
    def choice(self) -> DeviceChoice | None:
        """Chooses tokens after steps of one token per row; None if the device can't."""
        session = self._load_choice()
        if session is None:
            return None
        return DeviceChoice(self.memory, session, self.results, self.max_rows, self.padded_rows)

    @cached_property
    def trained(self) -> DeviceTrainedDrafts:
        """The bundle's trained drafts, and the states that passes and prompts leave for them."""
        assert self.drafts is not None, "drafts were resolved against the bundle"
        engines = self.drafts.trained
        return DeviceTrainedDrafts(
            self.memory, self.embed, engines, self.max_rows, self.padded_rows, self.capture
        )

    def runs_several_tokens(self, bucket: int | None) -> bool:
        """Return True if steps may run several tokens per row; TensorRT's plans take only one."""
        return self._mask_capacity(bucket) is None

    def steps(self, limits: Limits, kind: StepKind) -> DeviceSteps:
        """Return the steps of a kind over slots of the capacity in ``limits``.

        The steps of the last few capacities are kept.
        """
        key = limits.slot_capacity, limits.bucket
        of_kind = self._steps.setdefault(key, {})
        if kind not in of_kind:
            of_kind[kind] = self._new_steps(*key, kind)
        self._steps.move_to_end(key)
        if len(self._steps) > _KEPT_CAPACITIES:
            _clear(self._steps.popitem(last=False)[1])
        return of_kind[kind]

    def drop_graphs(self, limits: Limits) -> None:
        """Destroy the graphs and bindings of all steps over slots of these ``limits``."""
        _clear(self._steps.get((limits.slot_capacity, limits.bucket), {}))
        self._drop_cached()

    @override
    def close(self) -> None:
        for of_kind in self._steps.values():
            _clear(of_kind)
        self._steps.clear()
        self._drop_cached()

    @override
    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        active_lengths: Sequence[Sequence[int]],
        bucket: int | None,
        caches: LayerCaches,
        after: Callable[[int], None],
    ) -> StepLogits:
        padded = max(map(len, prompts))
        last = [index * padded + len(prompt) - 1 for index, prompt in enumerate(prompts)]

        def after_layer(layer: int, states: DeviceTensor) -> None:
            self._keep_ends(layer, states)
            after(layer)

        states = self._run(prompts, 0, active_lengths, last, bucket, caches, after_layer)
        return self._logits_of(states, len(prompts))

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
    ) -> StepLogits | None:
        active = [[max(0, min(length - start, len(tokens)))] for length in active_lengths]
        last = [len(tokens) - 1]
        states = self._run([tokens], start, active, last, bucket, caches, self._keep_ends)
        if is_last:
            return self._logits_of(states, 1)
        self.device.synchronize()  # the host's copy of the inputs may change afterwards
        return None

    @override
    def score(
        self,
        tokens: Sequence[int],
        active_lengths: Sequence[int],
        bucket: int | None,
        caches: LayerCaches,
        positions: Sequence[int],
        chunk: int,
    ) -> Iterator[Array]:
        lengths = [[length] for length in active_lengths]
        states = self._run([tokens], 0, lengths, [0], bucket, caches)
        for start in range(0, len(positions), chunk):
            gathered = positions[start : start + chunk]
            self.device.synchronize()
            self._inputs.send([[0]], 0, gathered, None)
            yield self._gather(states, self._inputs.device[TensorRole.ROW_POSITIONS])

    def _drop_cached(self) -> None:
        for name in ("choice", "trained"):
            if (held := self.__dict__.pop(name, None)) is not None:
                held.close()

    def _keep_ends(self, layer: int, states: DeviceTensor) -> None:
        """Keep the states of prompts' last tokens after a layer if drafts read them."""
        for index, depth in enumerate(self.reads):
            if depth == layer + 1:
                last = self._inputs.device[TensorRole.ROW_POSITIONS]
                self.trained.keep_ends(index, states, last)

    def _run(
        self,
        prompts: Sequence[Sequence[int]],
        start: int,
        active_lengths: Sequence[Sequence[int]],
        gathered: Sequence[int],
        bucket: int | None,
        caches: LayerCaches,
        after: Callable[[int, DeviceTensor], None] = lambda layer, states: None,
    ) -> DeviceTensor:
        """Run each layer on its prefixes of the prompts from ``start`` on; return the last states.

        ``after`` is called after each layer, with the states of all tokens [rows, S, E]. Layers
        that run whole rows read one buffer and write the other. Other layers read and write copies
        of their prefixes, in the second halves of the buffers.
        """
        rows, padded = len(prompts), max(map(len, prompts))
        lengths = [len(prompt) for prompt in prompts]
        whole = [list(active) == lengths for active in active_lengths]
        capacity = self._mask_capacity(bucket)
        inputs = self._inputs
        inputs.send(prompts, start, gathered, capacity)
        has_parts = any(any(a) and not w for a, w in zip(active_lengths, whole, strict=True))
        buffers = self._buffers.hidden_states(2 * rows if has_parts else rows, padded)
        read, written = (buffer[:rows] for buffer in buffers)  # [rows, S, E] each
        run_once(self.embed, inputs.device | {TensorRole.HIDDEN_STATES_OUT: read})
        sessions = self.layers(bucket)
        prepared: dict[Sequence[int], DeviceInputs] = {}  # by active lengths
        for layer, (session, active) in enumerate(zip(sessions, active_lengths, strict=True)):
            if whole[layer]:
                run_once(session, _tensors(inputs, start, *caches(layer), read, written))
                read, written = written, read
            elif any(active):
                prefixes = [_prefixes(buffer[rows:], max(active)) for buffer in buffers]
                inputs_of = prepared.get(tuple(active))
                if inputs_of is None:
                    inputs_of = self._prepare(len(prepared), prompts, start, active, capacity)
                    prepared[tuple(active)] = inputs_of
                self._copy_rows(prefixes[0], read, [max(active)] * rows)
                run_once(session, _tensors(inputs_of, start, *caches(layer), *prefixes))
                self._copy_rows(read, prefixes[1], active)
            after(layer, read)
        return read

    def _prepare(
        self,
        number: int,
        prompts: Sequence[Sequence[int]],
        start: int,
        active: Sequence[int],
        capacity: int | None,
    ) -> DeviceInputs:
        """Upload a layer's inputs for the first ``active[r]`` tokens of each row.

        ``number``: how many inputs the call has uploaded. Each has memory of its own, so that no
        upload waits.
        """
        if number == len(self._prefix_inputs):
            self._prefix_inputs.append(DeviceInputs(self.memory))
        inputs = self._prefix_inputs[number]
        tokens = [prompt[:length] for prompt, length in zip(prompts, active, strict=True)]
        inputs.send(tokens, start, [0], capacity)
        return inputs

    def _copy_rows(
        self, target: DeviceTensor, source: DeviceTensor, lengths: Sequence[int]
    ) -> None:
        """Copy the first ``lengths[r]`` tokens of each row; the two may be padded differently."""
        token_bytes = target.nbytes // (target.shape[0] * target.shape[1])
        pitch, source_pitch = (tensor.shape[1] * token_bytes for tensor in (target, source))
        first = 0
        for length, rows in groupby(lengths):
            height = len(list(rows))
            self.device.copy_strided(
                target.address + first * pitch,
                source.address + first * source_pitch,
                pitch=pitch,
                width=length * token_bytes,
                height=height,
                source_pitch=source_pitch,
            )
            first += height

    def _heads(self, kind: StepKind) -> tuple[EngineSession, EngineSession | None]:
        """Return the head, and the engine for candidates if it takes the head's logits."""
        if not kind.narrow:
            return self.head, self.candidates
        assert self.drafts is not None
        assert self.drafts.head is not None, "drafts were resolved against the bundle"
        return self.drafts.head, None

    def _new_steps(self, capacity: int, bucket: int | None, kind: StepKind) -> DeviceSteps:
        return DeviceSteps(
            DeviceEngines(self.memory, self.embed, self.layers(bucket), *self._heads(kind)),
            self._results_of(kind),
            self.capture,
            max_rows=self.max_rows,
            width=kind.width,
            padded_rows=self.padded_rows,
            capacity=capacity,
            mask=self._mask_capacity(bucket),
        )

    def _results_of(self, kind: StepKind) -> StepResults:
        """Return the results that all steps of this width and head share."""
        if kind not in self._results:
            (head, candidates), tokens = self._heads(kind), self.max_rows * kind.width
            self._results[kind] = (
                NarrowResults(self.memory, head.spec, tokens)
                if candidates is None
                else CandidateResults(self.memory, head.spec, candidates.spec, tokens)
            )
        return self._results[kind]

    def _logits_of(self, hidden_states: DeviceTensor, rows: int) -> StepLogits:
        """Return the logits of the ``rows`` gathered tokens, valid until the next prompts."""
        results = self._prompt_results
        tensors: dict[TensorRole, Tensor] = dict(results.tensors(rows))
        tensors[TensorRole.HIDDEN_STATES] = hidden_states
        tensors[TensorRole.ROW_POSITIONS] = self._inputs.device[TensorRole.ROW_POSITIONS]
        run_once(self.head, tensors)
        run_once(self.candidates, tensors)
        return results.download(rows).wait()

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
        """Return T of the layers' attention mask; None if they take no mask."""
        takes_mask = TensorRole.ATTENTION_MASK in self.layers(bucket)[0].spec.roles
        assert bucket is not None or not takes_mask, "a mask needs a static capacity"
        return bucket if takes_mask else None


_StepsByKind = dict[StepKind, DeviceSteps]


def _clear(of_kind: Mapping[StepKind, DeviceSteps]) -> None:
    for steps in of_kind.values():
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
