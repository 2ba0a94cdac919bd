"""Builds and decodes key and value caches of any dtype."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ...engines.manifest import KV_SCALE_BYTES, TensorRole, TensorSpec
from ...engines.memory import Array, numpy_dtype


def unused_cache(past: TensorSpec, rows: int, capacity: int, *, zeroed: bool) -> Array:
    """Return an empty cache [B, N, T, W] of the dtype of ``past``.

    It contains zeros, or NaN (in an int8 cache: NaN scales), which must not be read.
    """
    _, num_heads, _, width = past.shape
    cache = np.zeros((rows, int(num_heads), capacity, int(width)), numpy_dtype(past.dtype))
    if not zeroed:
        cache.view(np.uint8)[...] = 255  # NaN in every float type
    return cache


def cache_values(cache: Array, past: TensorSpec) -> NDArray[np.float32]:
    """Return float32 [..., D] values of a cache [..., W]."""
    if past.dtype == "int8":
        scale = np.ascontiguousarray(cache[..., -KV_SCALE_BYTES:]).view(np.float32)  # [..., 1]
        return np.multiply(cache[..., :-KV_SCALE_BYTES], scale, dtype=np.float32)
    stored = cache.view(ml_dtypes.bfloat16) if past.dtype == "bfloat16" else cache
    return np.asarray(stored, np.float32)


def position_inputs(starts: Array, num_tokens: int, capacity: int) -> dict[TensorRole, Array]:
    """Return the inputs that state positions: ``num_tokens`` per row, from ``starts`` [B] on.

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
