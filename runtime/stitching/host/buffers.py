"""StepBuffers: the memory that a pass on the host reads and writes, except its KV caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import add

import numpy as np

from ....engines.manifest import EngineSpec, TensorRole
from ....engines.memory import Tensor

_MOST_VIEWS = 1024  # shapes whose tensors are kept


class StepBuffers:
    """The memory of one pass over up to ``max_tokens`` tokens, allocated once.

    ``input_ids`` and ``position_ids`` int64 [max_tokens, 1] are written before each pass;
    ``hidden_states`` float [max_tokens, 1, E] is every layer's input and output; ``logits`` float32
    [max_tokens, V] is the result, overwritten by the next pass. A row's tokens lie one after the
    other.
    """

    def __init__(self, embed: EngineSpec, head: EngineSpec, max_tokens: int) -> None:
        hidden = embed.tensor(TensorRole.HIDDEN_STATES_OUT)
        vocab_size = int(head.tensor(TensorRole.LOGITS).shape[-1])
        self.input_ids = np.zeros((max_tokens, 1), np.int64)
        self.position_ids = np.zeros((max_tokens, 1), np.int64)
        self.hidden_states = np.zeros((max_tokens, 1, int(hidden.shape[-1])), hidden.dtype)
        self.seqlens_k = np.zeros(max_tokens, np.int32)  # total length - 1 of each row
        self.total_lengths = np.zeros(max_tokens, np.int32)  # the first is that of the longest row
        self.write_indices = np.zeros(max_tokens, np.int64)  # the token's position
        self.row_positions = np.arange(max_tokens, dtype=np.int64)
        self.logits = np.zeros((max_tokens, vocab_size), np.float32)
        self._views: dict[tuple[int, ...], Mapping[TensorRole, Tensor]] = {}

    def set_rows(self, starts: Sequence[int], counts: Sequence[int], *, is_split: bool) -> None:
        """Set where each row's tokens start and how many there are.

        ``is_split``: each row has a call of its own.
        """
        rows, ends = len(starts), list(map(add, starts, counts))
        self.write_indices[:rows] = starts
        self.seqlens_k[:rows] = [end - 1 for end in ends]
        if is_split:
            self.total_lengths[:rows] = ends
        else:
            self.total_lengths[0] = max(ends)

    def tensors(
        self, rows: int, tokens: int = 1, *, first_row: int = 0, first_token: int = 0
    ) -> Mapping[TensorRole, Tensor]:
        """Return views of ``rows`` rows of ``tokens`` tokens each, by role."""
        key = rows, tokens, first_row, first_token
        found = self._views.get(key)
        if found is None:
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            found = self._views[key] = self._make_views(rows, tokens, first_row, first_token)
        return found

    def _make_views(
        self, rows: int, tokens: int, first_row: int, first_token: int
    ) -> Mapping[TensorRole, Tensor]:
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
