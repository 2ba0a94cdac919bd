"""HostStitcher: engines that run at once on the host's memory, prompts and step buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from typing_extensions import override

from ....engines.backends.session import Binding, EngineSession
from ....engines.manifest import EngineSpec, TensorRole
from ....engines.memory import Array, Tensor
from ...kv.cache import KVCache, SlotCache
from ..drafts import DraftEngines
from ..protocol import LayerCaches, Stitcher, bind, cache_tensors, run_once


class StepBuffers:
    """The memory of one decode step for up to ``max_rows`` rows of a token each, allocated once.

    ``input_ids`` and ``position_ids`` int64 [max_rows, 1] are written before each step;
    ``hidden_states`` float [max_rows, 1, E] is every layer's input and output; ``logits`` float32
    [max_rows, V] is the result, overwritten by the next step. Rows of several tokens take as many
    places, one after the other.
    """

    def __init__(self, embed: EngineSpec, head: EngineSpec, max_rows: int) -> None:
        self._specs = embed, head
        hidden = embed.tensor(TensorRole.HIDDEN_STATES_OUT)
        vocab_size = int(head.tensor(TensorRole.LOGITS).shape[-1])
        self.input_ids = np.zeros((max_rows, 1), np.int64)
        self.position_ids = np.zeros((max_rows, 1), np.int64)
        self.hidden_states = np.zeros((max_rows, 1, int(hidden.shape[-1])), hidden.dtype)
        self.seqlens_k = np.zeros(max_rows, np.int32)  # total length - 1 of each row
        self.total_lengths = np.zeros(max_rows, np.int32)  # the first: of the longest row
        self.write_indices = np.zeros(max_rows, np.int64)  # the token's position
        self.row_positions = np.arange(max_rows, dtype=np.int64)
        self.logits = np.zeros((max_rows, vocab_size), np.float32)

    def resized(self, max_rows: int) -> StepBuffers:
        """Return new buffers of the same engines for another number of rows."""
        return StepBuffers(*self._specs, max_rows)

    def set_positions(self, positions: Sequence[int]) -> None:
        """Set the position of the one token that each row feeds."""
        rows = len(positions)
        self.position_ids[:rows, 0] = positions
        self.seqlens_k[:rows] = positions
        self.total_lengths[0] = max(positions) + 1
        self.write_indices[:rows] = positions

    def set_rows(self, starts: Array, counts: Array) -> None:
        """Set where each row's tokens start and how many there are, for calls of one row each."""
        rows = len(starts)
        self.write_indices[:rows] = starts
        np.add(starts, counts - 1, out=self.seqlens_k[:rows], casting="unsafe")
        np.add(starts, counts, out=self.total_lengths[:rows], casting="unsafe")

    def tensors(
        self, rows: int, tokens: int = 1, *, first_row: int = 0, first_token: int = 0
    ) -> dict[TensorRole, Tensor]:
        """Return views of ``rows`` rows of ``tokens`` tokens each, by role."""
        of_tokens = slice(first_token, first_token + rows * tokens)
        of_rows = slice(first_row, first_row + rows)
        hidden_states = self.hidden_states[of_tokens].reshape(rows, tokens, -1)
        return {
            TensorRole.INPUT_IDS: self.input_ids[of_tokens].reshape(rows, tokens),
            TensorRole.POSITION_IDS: self.position_ids[of_tokens].reshape(rows, tokens),
            TensorRole.HIDDEN_STATES: hidden_states,
            TensorRole.HIDDEN_STATES_OUT: hidden_states,
            TensorRole.SEQLENS_K: self.seqlens_k[of_rows],
            TensorRole.TOTAL_SEQUENCE_LENGTH: self.total_lengths[first_row : first_row + 1].reshape(
                ()
            ),
            TensorRole.WRITE_INDICES: self.write_indices[of_rows],
            TensorRole.ROW_POSITIONS: self.row_positions[of_tokens],
            TensorRole.LOGITS: self.logits[of_tokens],
        }


class HostStitcher(Stitcher):
    """Holds engines on numpy arrays and the memory of their steps, for `HostSlotStitcher`.

    ``drafts`` are the bundle's engines for drafts, loaded once they are used; None: it has none.
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
        self.buffers = StepBuffers(embed.spec, head.spec, max_rows)

    @override
    def load_drafts(self, *, layer: bool, head: bool) -> None:
        if self.drafts is not None:
            _ = layer and self.drafts.layer, head and self.drafts.head  # loaded on first use

    def session(self, layer: int) -> EngineSession:
        """Return a layer's engine; the draft layer has the number behind the last."""
        if layer < len(self.layers):
            return self.layers[layer]
        assert self.drafts is not None
        assert self.drafts.layer is not None, "drafts were resolved against the bundle"
        return self.drafts.layer

    def follow(
        self, tokens: Sequence[int], start: int, layers: Iterable[int], caches: LayerCaches
    ) -> None:
        """Run one row's tokens from position ``start`` on through ``layers``, for their caches."""
        hidden_states = self._embed_tokens([tokens], start)  # [1, S, E]
        for layer in layers:
            lengths = np.array([len(tokens)])
            run_once(self.session(layer), _tensors(hidden_states, *caches(layer), lengths, start))

    @override
    def close(self) -> None:
        """Do nothing: the backend frees the engines, and slots their bindings."""

    @override
    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        active_lengths: Sequence[Sequence[int]],
        bucket: int | None,
        caches: LayerCaches,
        after: Callable[[int], None],
    ) -> Array:
        """Run prompts, padded on the right to the longest.

        What is computed beyond a row's own length is dropped: hidden states stay as the layer below
        left them, keys and values are never read.
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
    ) -> Array | None:
        hidden_states = self._embed_tokens([tokens], start)  # [1, S, E]
        for layer, session in enumerate(self.layers):
            active = min(active_lengths[layer] - start, len(tokens))
            if active > 0:
                _run_prefixes(session, hidden_states, *caches(layer), np.array([active]), start)
        if not is_last:
            return None
        return self._gather_logits(hidden_states, np.array([len(tokens) - 1]))

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


class HostBindings:
    """Bindings of engines to two sets of buffers, made on first use and kept.

    Layers work on ``whole``, or on ``part`` where their rows are gathered; embedding and head work
    on ``whole``. A layer's bindings last until its caches move.
    """

    def __init__(
        self, engines: HostStitcher, cache: SlotCache, whole: StepBuffers, part: StepBuffers
    ) -> None:
        self._whole, self._part = whole, part
        self.engines = engines
        self._cache = cache
        self._layers: dict[tuple[int, ...], tuple[int, Binding]] = {}  # and caches' generations
        self._ends: dict[int, tuple[Binding, Binding]] = {}  # by tokens of a pass
        self._heads: dict[tuple[int, int, bool], Binding] = {}  # by tokens, chosen ones, narrow
        self._narrow_logits: Array | None = None  # float32 [max_rows, N], of the narrow head
        self.head_positions = np.zeros(len(whole.row_positions), np.int64)

    def __len__(self) -> int:
        """Return the number of the layers' bindings."""
        return len(self._layers)

    def layer(
        self,
        layer: int,
        rows: int,
        tokens: int = 1,
        *,
        slot: int = 0,
        first_token: int = 0,
        is_part: bool,
    ) -> Binding:
        """Return the layer bound to ``rows`` slots from ``slot`` on, of ``tokens`` tokens each."""
        generation = self._cache.generation(layer)
        key = (layer, rows, tokens, slot, first_token, is_part)
        found = self._layers.get(key)
        if found is None or found[0] != generation:
            if found is not None:
                found[1].release()
            buffers = self._part if is_part else self._whole
            places = buffers.tensors(rows, tokens, first_row=slot, first_token=first_token)
            held = self._cache.first(layer, slot + rows)
            caches = cache_tensors(*(tensor[slot:] for tensor in held))
            binding = bind(self.engines.session(layer), places | caches)
            found = self._layers[key] = generation, binding
        return found[1]

    def ends(self, tokens: int) -> tuple[Binding, Binding]:
        """Return embedding and head, bound to the first ``tokens`` tokens."""
        if tokens not in self._ends:
            tensors, engines = self._whole.tensors(tokens), self.engines
            self._ends[tokens] = (bind(engines.embed, tensors), bind(engines.head, tensors))
        return self._ends[tokens]

    def head(self, tokens: int, chosen: int, *, narrow: bool) -> Binding:
        """Return the head, or the narrow one, for ``chosen`` of the first ``tokens`` tokens.

        Their places are read from ``head_positions`` int64 when it runs, and the results are
        `head_logits`.
        """
        key = tokens, chosen, narrow
        if key not in self._heads:
            tensors = self._whole.tensors(tokens) | {
                TensorRole.ROW_POSITIONS: self.head_positions[:chosen],
                TensorRole.LOGITS: self.head_logits(narrow=narrow)[:chosen],
            }
            self._heads[key] = bind(self._head_session(narrow), tensors)
        return self._heads[key]

    def head_logits(self, *, narrow: bool) -> Array:
        """Return the logits float32 [max_rows, V] that `head` writes; [max_rows, N] if narrow."""
        if not narrow:
            return self._whole.logits
        if self._narrow_logits is None:
            width = self._head_session(narrow).spec.tensor(TensorRole.LOGITS).shape[-1]
            rows = len(self._whole.row_positions)
            self._narrow_logits = np.zeros((rows, int(width)), np.float32)
        return self._narrow_logits

    def _head_session(self, narrow: bool) -> EngineSession:
        if not narrow:
            return self.engines.head
        assert self.engines.drafts is not None
        assert self.engines.drafts.head is not None, "drafts were resolved against the bundle"
        return self.engines.drafts.head

    def drop_layers(self) -> None:
        """Release the layers' bindings, whose caches are about to be freed."""
        for _, binding in self._layers.values():
            binding.release()
        self._layers.clear()

    def close(self) -> None:
        """Release all bindings."""
        self.drop_layers()
        for ends in self._ends.values():
            for binding in ends:
                binding.release()
        for head in self._heads.values():
            head.release()
        self._ends.clear()
        self._heads.clear()


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
