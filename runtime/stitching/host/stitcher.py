"""HostStitcher: engines that run synchronously in host memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from typing_extensions import override

from ....engines.backends.session import EngineSession
from ....engines.manifest import TensorRole
from ....engines.memory import Array, Buffer, Tensor
from ...tokens.logits import HostLogits
from ..drafts import DraftEngines
from ..protocol import LayerCaches, Stitcher, cache_tensors, run_once
from .workspace import Workspace

_LEAST_TOKENS = 16  # minimum size of the memory of passes with several tokens per row


class HostStitcher(Stitcher):
    """Holds engines on numpy arrays and the memory of their passes, for `HostSlotStitcher`.

    The memory that is allocated at the start is for up to ``max_rows`` rows of one token.
    ``session(layer)`` is a layer's engine; the draft layer has the number after the last layer's.
    """

    def __init__(
        self,
        embed: EngineSession,
        layers: Sequence[EngineSession],
        head: EngineSession,
        max_rows: int,
        drafts: DraftEngines | None,
    ) -> None:
        self.drafts = drafts
        self.embed = embed
        self.layers = tuple(layers)
        self.head = head
        self.session = partial(_session_of, self.layers, drafts)  # a method would make a cycle
        self._max_rows = max_rows
        self._workspace: Workspace | None = self._new_workspace(max_rows)
        self.end_states: Array = np.zeros((0, 0, 0))  # of the last prompts, [rows, 3, E]

    def workspace(self, tokens: int = 1) -> Workspace:
        """Return the memory of passes over up to ``tokens`` tokens; a larger one replaces it."""
        held = self._workspace
        if held is None or held.max_tokens < tokens:
            if held is not None:
                held.close()
            size = self._max_rows
            if tokens > size:
                size = 1 << (max(tokens, _LEAST_TOKENS) - 1).bit_length()
            held = self._workspace = self._new_workspace(size)
        return held

    @override
    def forget(self, memory: Buffer) -> None:
        if self._workspace is not None:
            self._workspace.layers.forget(memory)

    @override
    def trim(self) -> None:
        if self._workspace is not None and self._workspace.max_tokens > self._max_rows:
            self.close()

    @override
    def close(self) -> None:
        if self._workspace is not None:
            self._workspace.close()
            self._workspace = None

    @override
    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        active_lengths: Sequence[Sequence[int]],
        bucket: int | None,
        caches: LayerCaches,
        after: Callable[[int], None],
    ) -> HostLogits:
        hidden_states = self._run(prompts, 0, active_lengths, caches, after)
        return HostLogits(self._gather_logits(hidden_states, _ends(prompts)))

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
    ) -> HostLogits | None:
        active = [[max(0, min(length - start, len(tokens)))] for length in active_lengths]
        hidden_states = self._run([tokens], start, active, caches)
        if not is_last:
            return None
        return HostLogits(self._gather_logits(hidden_states, _ends([tokens])))

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
        active = [[length] for length in active_lengths]
        hidden_states = self._run([tokens], 0, active, caches)
        for start in range(0, len(positions), chunk):
            yield self._gather_logits(hidden_states, np.array(positions[start : start + chunk]))

    def _new_workspace(self, tokens: int) -> Workspace:
        return Workspace(self.embed, self.head, self.drafts, tokens, self.session)

    def _run(
        self,
        prompts: Sequence[Sequence[int]],
        start: int,
        active_lengths: Sequence[Sequence[int]],
        caches: LayerCaches,
        after: Callable[[int], None] = lambda layer: None,
    ) -> Array:
        """Run prompts from position ``start`` on, padded on the right; return states [rows, S, E].

        Layer l runs row r's first ``active_lengths[l][r]`` tokens. Results beyond a row's own
        length are dropped: hidden states stay as the layer below left them, and keys and values are
        never read. The states of last tokens that drafts read become `end_states`.
        """
        lengths = [len(prompt) for prompt in prompts]
        hidden_states = self._embed_tokens(prompts, start)
        whole = _placed(hidden_states, np.array(lengths), start)
        ends = _ends(prompts)
        reads, width = self.reads, hidden_states.shape[-1]
        self.end_states = np.zeros((len(prompts), len(reads), width), hidden_states.dtype)
        for layer, (session, active) in enumerate(zip(self.layers, active_lengths, strict=True)):
            if list(active) == lengths:
                run_once(session, whole | cache_tensors(*caches(layer)))
            elif any(active):
                run_prefixes(session, hidden_states, *caches(layer), np.array(active), start)
            for index, depth in enumerate(reads):
                if depth == layer + 1:
                    self.end_states[:, index] = hidden_states.reshape(-1, width)[ends]
            after(layer)
        return hidden_states

    def _embed_tokens(self, rows: Sequence[Sequence[int]], start: int) -> Array:
        padded = max(len(row) for row in rows)
        spec = self.embed.spec.tensor(TensorRole.HIDDEN_STATES_OUT)
        input_ids = np.zeros((len(rows), padded), np.int64)
        for index, row in enumerate(rows):
            input_ids[index, : len(row)] = row
        hidden_states = np.empty((len(rows), padded, int(spec.shape[-1])), spec.dtype)
        tensors: dict[TensorRole, Tensor] = {
            TensorRole.INPUT_IDS: input_ids,
            TensorRole.POSITION_IDS: _positions(len(rows), padded, start),
            TensorRole.HIDDEN_STATES_OUT: hidden_states,
        }
        run_once(self.embed, tensors)
        return hidden_states

    def _gather_logits(self, hidden_states: Array, row_positions: Array) -> Array:
        vocab_size = int(self.head.spec.tensor(TensorRole.LOGITS).shape[-1])
        logits = np.empty((len(row_positions), vocab_size), np.float32)
        tensors: dict[TensorRole, Tensor] = {
            TensorRole.HIDDEN_STATES: hidden_states,
            TensorRole.ROW_POSITIONS: row_positions.astype(np.int64),
            TensorRole.LOGITS: logits,
        }
        run_once(self.head, tensors)
        return logits


def _session_of(
    layers: Sequence[EngineSession], drafts: DraftEngines | None, layer: int
) -> EngineSession:
    if layer < len(layers):
        return layers[layer]
    assert drafts is not None, "drafts were resolved against the bundle"
    return drafts.trained.layer


def run_prefixes(
    session: EngineSession,
    hidden_states: Array,
    key: Tensor,
    value: Tensor,
    active: Array,
    start: int,
) -> None:
    """Run the first ``active[r]`` tokens of each row [S, E]; the others bypass the layer."""
    longest = int(active.max())
    prefixes = hidden_states[:, :longest]  # [rows, longest, E]
    if len(active) > 1:  # the prefix of a single row has no padding
        prefixes = prefixes.copy()
    run_once(session, _placed(prefixes, active, start) | cache_tensors(key, value))
    for row, length in enumerate(active):
        hidden_states[row, :length] = prefixes[row, :length]


def _placed(hidden_states: Array, lengths: Array, start: int) -> dict[TensorRole, Tensor]:
    """Return the inputs that all layers share: hidden states [rows, S, E] and their positions."""
    rows, padded, _ = hidden_states.shape
    return {
        TensorRole.HIDDEN_STATES: hidden_states,
        TensorRole.HIDDEN_STATES_OUT: hidden_states,
        TensorRole.POSITION_IDS: _positions(rows, padded, start),
        TensorRole.SEQLENS_K: (start + lengths - 1).astype(np.int32),
        TensorRole.TOTAL_SEQUENCE_LENGTH: np.array(start + padded, np.int32),
        TensorRole.WRITE_INDICES: np.full(rows, start, np.int64),
    }


def _positions(rows: int, length: int, start: int) -> Array:
    """Return int64 [rows, length]: start, start + 1, start + 2, … in each row."""
    return np.tile(np.arange(start, start + length, dtype=np.int64), (rows, 1))


def _ends(prompts: Sequence[Sequence[int]]) -> Array:
    """Return int64 [rows]: the flat index of each row's last token, with rows padded alike."""
    longest = max(map(len, prompts))
    return np.array([row * longest + len(prompt) - 1 for row, prompt in enumerate(prompts)])
