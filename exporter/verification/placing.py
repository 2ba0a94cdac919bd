"""Where the tokens of a call stand: what canonical and lowered engines are told, by role."""

from __future__ import annotations

import numpy as np

from ...engines.manifest import TensorRole
from ...engines.memory import Array


def placing(starts: Array, num_tokens: int, capacity: int) -> dict[TensorRole, Array]:
    """All that says where ``num_tokens`` tokens a row stand, the first at ``starts`` [B].

    The mask is bool [B, 1, S, T]: token s of row b sees the positions up to ``starts[b] + s``.
    """
    positions = starts[:, None] + np.arange(num_tokens)  # [B, S]
    return {
        TensorRole.POSITION_IDS: positions,
        TensorRole.WRITE_INDICES: starts,
        TensorRole.ATTENTION_MASK: (np.arange(capacity) <= positions[..., None])[:, None],
        TensorRole.SEQLENS_K: (starts + num_tokens - 1).astype(np.int32),
        TensorRole.TOTAL_SEQUENCE_LENGTH: np.array(starts.max() + num_tokens, np.int32),
    }
