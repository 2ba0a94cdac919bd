"""Weights in the order in which the kernels read them. numpy only."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Element = TypeVar("Element", bound=np.generic)

BLOCK_COLUMNS = 16  # lie together, so that a vector's lanes are columns
INT8_DEPTH_MULTIPLE = 64  # to which the depth is padded: what a tile of AMX holds of a column
INT8_DEPTH_STEP = 4  # codes of a column that lie together, as dot products take them
INT8_ZERO_POINT = 128  # of the activations that meet the weights


def pack_int8(codes: NDArray[np.int8]) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """``weight`` and ``offset`` of the operator QuantizedLinear, from codes [K, N].

    ``weight`` is [Np/16, Kp/4, 16, 4] with K and N rounded up to multiples of 64 and 16 and zeros
    beyond them; ``offset`` [N] is 128 · Σ_k codes, what a zero point of 128 adds to the sums. Both
    are copies.

    >>> weight, offset = pack_int8(np.array([[1, 2], [3, -4]], np.int8))
    >>> weight.shape, weight[0, 0, :2].tolist(), offset.tolist()
    ((1, 16, 16, 4), [[1, 3, 0, 0], [2, -4, 0, 0]], [512, -256])
    """
    depth, columns = codes.shape
    padding = ((0, -depth % INT8_DEPTH_MULTIPLE), (0, -columns % BLOCK_COLUMNS))
    padded = np.pad(codes, padding)
    steps = padded.reshape(-1, INT8_DEPTH_STEP, padded.shape[1] // BLOCK_COLUMNS, BLOCK_COLUMNS)
    weight = np.ascontiguousarray(steps.transpose(2, 0, 3, 1))
    return weight, codes.sum(axis=0, dtype=np.int32) * np.int32(INT8_ZERO_POINT)


def unpack_int8(weight: NDArray[np.int8], shape: tuple[int, int]) -> NDArray[np.int8]:
    """The codes [K, N] that ``pack_int8`` made ``weight`` of; a copy.

    >>> unpack_int8(pack_int8(np.array([[1, 2], [3, -4]], np.int8))[0], (2, 2)).tolist()
    [[1, 2], [3, -4]]
    """
    blocks, steps, columns, step = weight.shape
    padded = weight.transpose(1, 3, 0, 2).reshape(steps * step, blocks * columns)
    return padded[: shape[0], : shape[1]].copy()


def pack_half(weight: NDArray[Element]) -> NDArray[Element]:
    """``weight`` of the operator HalfLinear, from weights [K, N] of 16 bits; a copy.

    It is [Np/16, K, 16] with N rounded up to a multiple of 16 and zeros beyond it.

    >>> pack_half(np.ones((3, 20), np.float16)).shape
    (2, 3, 16)
    """
    padded = np.pad(weight, ((0, 0), (0, -weight.shape[1] % BLOCK_COLUMNS)))
    blocks = padded.reshape(len(weight), -1, BLOCK_COLUMNS)
    return np.ascontiguousarray(blocks.transpose(1, 0, 2))


def unpack_half(weight: NDArray[Element], columns: int) -> NDArray[Element]:
    """The weights [K, columns] that ``pack_half`` made ``weight`` of; a copy."""
    blocks, depth, together = weight.shape
    return weight.transpose(1, 0, 2).reshape(depth, blocks * together)[:, :columns].copy()
