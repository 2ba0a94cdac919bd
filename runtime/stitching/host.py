"""Stitches engines that run at once on the host's memory.

Hidden states stay in one buffer that every layer reads and overwrites.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...engines.backends.session import Binding, EngineSession
from ...engines.manifest import EngineSpec, TensorRole
from ...engines.memory import Array, Tensor
from ..kv.cache import KVCache
from ..schedule import LayerPlan
from ..tokens.logits import HostLogits
from .host_prompts import HostPrompts
from .stitcher import Stitcher, bind, cache_tensors


class StepBuffers:
    """The memory of one decode step for up to ``max_rows`` rows, allocated once.

    ``input_ids``, ``position_ids`` int64 [max_rows, 1] and ``total_lengths`` are written before
    each step; ``hidden_states`` float [max_rows, 1, E] is every layer's input and output;
    ``logits`` float32 [max_rows, V] is the result, overwritten by the next step.
    """

    def __init__(self, embed: EngineSpec, head: EngineSpec, max_rows: int) -> None:
        hidden = embed.tensor(TensorRole.HIDDEN_STATES_OUT)
        vocab_size = int(head.tensor(TensorRole.LOGITS).shape[-1])
        self.input_ids = np.zeros((max_rows, 1), np.int64)
        self.position_ids = np.zeros((max_rows, 1), np.int64)
        self.hidden_states = np.zeros((max_rows, 1, int(hidden.shape[-1])), hidden.dtype)
        self.seqlens_k = np.zeros(max_rows, np.int32)  # total length - 1 of each row
        self.total_sequence_length = np.zeros((), np.int32)  # of the longest row
        self.write_indices = np.zeros(max_rows, np.int64)  # the token's position
        self.row_positions = np.arange(max_rows, dtype=np.int64)
        self.logits = np.zeros((max_rows, vocab_size), np.float32)

    def set_positions(self, positions: Sequence[int]) -> None:
        """Say at which position of its row each row's input token stands."""
        rows = len(positions)
        self.position_ids[:rows, 0] = positions
        self.seqlens_k[:rows] = positions
        self.total_sequence_length[...] = max(positions) + 1
        self.write_indices[:rows] = positions

    def tensors(self, rows: int) -> dict[TensorRole, Tensor]:
        """Views of the first ``rows`` rows, by role."""
        return {
            TensorRole.INPUT_IDS: self.input_ids[:rows],
            TensorRole.POSITION_IDS: self.position_ids[:rows],
            TensorRole.HIDDEN_STATES: self.hidden_states[:rows],
            TensorRole.HIDDEN_STATES_OUT: self.hidden_states[:rows],
            TensorRole.SEQLENS_K: self.seqlens_k[:rows],
            TensorRole.TOTAL_SEQUENCE_LENGTH: self.total_sequence_length,
            TensorRole.WRITE_INDICES: self.write_indices[:rows],
            TensorRole.ROW_POSITIONS: self.row_positions[:rows],
            TensorRole.LOGITS: self.logits[:rows],
        }


class HostStitcher(Stitcher):
    """Engines on numpy arrays.

    Bindings are made when a batch starts, shrinks or retires a layer; in between, a step only
    runs them.
    """

    def __init__(
        self,
        embed: EngineSession,
        layers: Sequence[EngineSession],
        head: EngineSession,
        max_rows: int,
    ) -> None:
        self.embed = embed
        self.layers = tuple(layers)
        self.head = head
        self.prompts = HostPrompts(embed, self.layers, head)
        self.buffers = StepBuffers(embed.spec, head.spec, max_rows)
        self._ends: dict[int, tuple[Binding, Binding]] = {}  # rows -> embed and head
        self._bound: dict[int, Binding] = {}  # layer -> binding, for _bound_rows rows
        self._bound_rows = 0

    def decode(
        self, cache: KVCache, plan: LayerPlan, tokens: Sequence[int], positions: Sequence[int]
    ) -> HostLogits:
        """See Stitcher; the logits are a view of ``buffers.logits``."""
        rows = len(tokens)
        self.buffers.input_ids[:rows, 0] = tokens
        self.buffers.set_positions(positions)
        if rows != self._bound_rows:
            self.unbind()
            self._bound_rows = rows
        if rows not in self._ends:
            tensors = self.buffers.tensors(rows)
            self._ends[rows] = (bind(self.embed, tensors), bind(self.head, tensors))
        embed, head = self._ends[rows]
        embed.run()
        for layer in plan.layers:
            if layer not in self._bound:
                self._bound[layer] = self._bind_layer(cache, layer, rows)
            self._bound[layer].run()
        head.run()
        return HostLogits(self.buffers.logits[:rows])

    def retire(self, cache: KVCache, plan: LayerPlan) -> None:
        """See Stitcher."""
        kept = frozenset(plan.layers)
        for layer in range(len(self.layers)):
            if layer not in kept and cache.is_live(layer):
                if layer in self._bound:
                    self._bound.pop(layer).release()
                cache.retire(layer)

    def unbind(self) -> None:
        """See Stitcher."""
        for binding in self._bound.values():
            binding.release()
        self._bound.clear()
        self._bound_rows = 0

    def close(self) -> None:
        """See Stitcher."""
        self.unbind()
        for embed, head in self._ends.values():
            embed.release()
            head.release()
        self._ends.clear()

    def prefill(
        self,
        cache: KVCache,
        first_row: int,
        prompts: Sequence[Sequence[int]],
        active_lengths: Sequence[Sequence[int]],
    ) -> Array:
        """See Stitcher."""
        rows = len(prompts)

        def caches(layer: int) -> tuple[Tensor, Tensor]:
            if cache.is_live(layer):
                return cache.rows(layer, first_row, first_row + rows)
            return cache.scratch(rows)

        return self.prompts.prefill(prompts, active_lengths, caches)

    def score(
        self,
        cache: KVCache,
        tokens: Sequence[int],
        active_lengths: Sequence[int],
        positions: Sequence[int],
        chunk: int,
    ) -> Iterator[Array]:
        """See Stitcher."""
        return self.prompts.score(tokens, active_lengths, positions, chunk, cache.scratch(1))

    def _bind_layer(self, cache: KVCache, layer: int, rows: int) -> Binding:
        key, value = cache.rows(layer, 0, rows)
        return bind(self.layers[layer], self.buffers.tensors(rows) | cache_tensors(key, value))
