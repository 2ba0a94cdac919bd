"""HostPrompts: prompts on the host, in one call of each engine or in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ....engines.backends.session import EngineSession
from ....engines.manifest import TensorRole
from ....engines.memory import Array, Tensor
from ..bindings import cache_tensors, run_once
from ..protocol import LayerCaches, do_nothing


@dataclass(frozen=True)
class HostPrompts:
    """Runs prompts and scored texts on the engines of a bundle."""

    embed: EngineSession
    layers: Sequence[EngineSession]
    head: EngineSession

    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        active_lengths: Sequence[Sequence[int]],
        caches: LayerCaches,
        after: Callable[[int], None] = do_nothing,
    ) -> Array:
        """Run prompts into empty caches, of row r ``active_lengths[l][r]`` tokens in layer l.

        Ragged prompts are padded on the right and prefixes cut at the longest; what is computed
        beyond a row's own length is dropped: hidden states stay as the layer below left them, keys
        and values are never read. A layer writes to ``caches(layer)``; ``after(layer)`` is called
        when it has.

        Returns logits float32 [rows, V] of each prompt's last token, newly allocated.
        """
        lengths = np.array([len(prompt) for prompt in prompts])  # [rows]
        hidden_states = self._embed_tokens(prompts, 0)  # [rows, S, E]
        padded = hidden_states.shape[1]
        for layer, session in enumerate(self.layers):
            active = np.array(active_lengths[layer])  # [rows]
            if np.array_equal(active, lengths):
                run_once(session, _tensors(hidden_states, *caches(layer), lengths, 0))
            else:
                _run_prefixes(session, hidden_states, *caches(layer), active, 0)
            after(layer)
        row_positions = np.arange(len(prompts)) * padded + lengths - 1  # [rows]
        return self._gather_logits(hidden_states, row_positions)

    def chunk(
        self,
        tokens: Sequence[int],
        start: int,
        active_lengths: Sequence[int],
        caches: LayerCaches,
        *,
        is_last: bool,
    ) -> Array | None:
        """Run ``tokens`` of one prompt, from position ``start`` on, on its caches.

        Layer l runs the prompt's first ``active_lengths[l]`` tokens. With int8 products the bits
        are those of the whole prompt at once. Returns logits float32 [1, V] of the last token if
        this is the prompt's last chunk.
        """
        hidden_states = self._embed_tokens([tokens], start)  # [1, S, E]
        for layer, session in enumerate(self.layers):
            active = min(active_lengths[layer] - start, len(tokens))
            if active > 0:
                _run_prefixes(session, hidden_states, *caches(layer), np.array([active]), start)
        if not is_last:
            return None
        return self._gather_logits(hidden_states, np.array([len(tokens) - 1]))

    def score(
        self,
        tokens: Sequence[int],
        active_lengths: Sequence[int],
        positions: Sequence[int],
        chunk: int,
        scratch: tuple[Tensor, Tensor],
    ) -> Iterator[Array]:
        """See `Stitcher.score`; every layer writes ``scratch``."""
        hidden_states = self._embed_tokens([tokens], 0)  # [1, S, E]
        for session, length in zip(self.layers, active_lengths, strict=True):
            _run_prefixes(session, hidden_states, *scratch, np.array([length]), 0)
        for start in range(0, len(positions), chunk):
            yield self._gather_logits(hidden_states, np.array(positions[start : start + chunk]))

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


def _run_prefixes(
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
    rows, padded, _ = hidden_states.shape
    return cache_tensors(key, value) | {
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
