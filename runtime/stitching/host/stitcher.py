"""HostStitcher: engines that run at once on the host's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from typing_extensions import override

from ....engines.backends.session import EngineSession
from ....engines.manifest import TensorRole
from ....engines.memory import Array, Buffer, Tensor
from ...kv.cache import KVCache
from ...tokens.logits import HostLogits
from ..drafts import DraftEngines
from ..protocol import LayerCaches, Stitcher, cache_tensors, run_once
from .workspace import Workspace

_LEAST_TOKENS = 16  # that the memory of passes of several tokens a row holds


class HostStitcher(Stitcher):
    """Holds engines on numpy arrays and the memory of their passes, for `HostSlotStitcher`.

    ``drafts`` are the bundle's engines for drafts, loaded once they are used; None: it has none.
    Up to ``max_rows`` rows feed a token each in the memory that is held from the start.
    """

    def __init__(
        self,
        embed: EngineSession,
        layers: Sequence[EngineSession],
        head: EngineSession,
        max_rows: int,
        drafts: DraftEngines | None = None,
    ) -> None:
        self.drafts = drafts
        self.embed = embed
        self.layers = tuple(layers)
        self.head = head
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

    def session(self, layer: int) -> EngineSession:
        """Return a layer's engine; the draft layer has the number behind the last."""
        return _session_of(self.layers, self.drafts, layer)

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
        """Run prompts, padded on the right to the longest.

        What is computed beyond a row's own length is dropped: hidden states stay as the layer below
        left them, keys and values are never read.
        """
        lengths = [len(prompt) for prompt in prompts]
        ends = np.array(lengths)  # [rows]
        hidden_states = self._embed_tokens(prompts, 0)  # [rows, S, E]
        padded = hidden_states.shape[1]
        whole = _placed(hidden_states, ends, 0)
        last = np.arange(len(prompts)), ends - 1
        states = _EndStates(self.reads, hidden_states, last)
        for layer, session in enumerate(self.layers):
            if list(active_lengths[layer]) == lengths:
                run_once(session, whole | cache_tensors(*caches(layer)))
            else:
                active = np.array(active_lengths[layer])  # [rows]
                run_prefixes(session, hidden_states, *caches(layer), active, 0)
            states.keep(layer + 1)
            after(layer)
        self.end_states = states.kept
        row_positions = np.arange(len(prompts)) * padded + ends - 1  # [rows]
        return HostLogits(self._gather_logits(hidden_states, row_positions))

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
        hidden_states = self._embed_tokens([tokens], start)  # [1, S, E]
        states = _EndStates(self.reads, hidden_states, (np.array([0]), np.array([len(tokens) - 1])))
        for layer, session in enumerate(self.layers):
            active = min(active_lengths[layer] - start, len(tokens))
            if active > 0:
                run_prefixes(session, hidden_states, *caches(layer), np.array([active]), start)
            states.keep(layer + 1)
        if not is_last:
            return None
        self.end_states = states.kept
        return HostLogits(self._gather_logits(hidden_states, np.array([len(tokens) - 1])))

    @override
    def score(
        self,
        cache: KVCache,
        tokens: Sequence[int],
        active_lengths: Sequence[int],
        positions: Sequence[int],
        chunk: int,
    ) -> Iterator[Array]:
        scratch = cache.scratch(1)
        hidden_states = self._embed_tokens([tokens], 0)  # [1, S, E]
        for session, length in zip(self.layers, active_lengths, strict=True):
            run_prefixes(session, hidden_states, *scratch, np.array([length]), 0)
        for start in range(0, len(positions), chunk):
            yield self._gather_logits(hidden_states, np.array(positions[start : start + chunk]))

    def _new_workspace(self, tokens: int) -> Workspace:
        session = partial(_session_of, self.layers, self.drafts)  # not self, which would be a cycle
        return Workspace(self.embed, self.head, self.drafts, tokens, session)

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
    assert drafts is not None
    trained = drafts.trained
    assert trained is not None, "drafts were resolved against the bundle"
    return trained.layer


class _EndStates:
    """The states of prompts' last tokens behind those layers that drafts read, [rows, 3, E].

    They are those of ``hidden_states`` [rows, S, E] at the indices ``last``, [rows] each.
    """

    def __init__(
        self, reads: Sequence[int], hidden_states: Array, last: tuple[Array, Array]
    ) -> None:
        self._reads, self._hidden_states, self._last = reads, hidden_states, last
        rows, _, width = hidden_states.shape
        self.kept = np.zeros((rows, len(reads), width), hidden_states.dtype)

    def keep(self, count: int) -> None:
        """Keep what is there behind ``count`` layers if it is read."""
        for index, depth in enumerate(self._reads):
            if depth == count:
                self.kept[:, index] = self._hidden_states[self._last]


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
    if len(active) > 1:  # one row's are as many as run, and lie together
        prefixes = prefixes.copy()
    run_once(session, _tensors(prefixes, key, value, active, start))
    for row, length in enumerate(active):
        hidden_states[row, :length] = prefixes[row, :length]


def _tensors(
    hidden_states: Array, key: Tensor, value: Tensor, lengths: Array, start: int
) -> dict[TensorRole, Tensor]:
    return _placed(hidden_states, lengths, start) | cache_tensors(key, value)


def _placed(hidden_states: Array, lengths: Array, start: int) -> dict[TensorRole, Tensor]:
    """Return what all layers read alike: hidden states [rows, S, E], and where they stand."""
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
