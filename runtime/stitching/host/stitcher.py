"""Stitches engines that run at once on the host's memory.

Hidden states stay in one buffer that every layer reads and overwrites.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ....engines.backends.session import EngineSession
from ....engines.manifest import EngineSpec, TensorRole
from ....engines.memory import Array, Tensor
from ...kv.cache import KVCache
from ..stitcher import Stitcher
from .prompts import HostPrompts


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
    """Engines on numpy arrays, and the memory of their steps; `HostSlotStitcher` runs these."""

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

    def close(self) -> None:
        """See Stitcher."""

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
