"""Packing of weights into the layout that the kernels read; numpy only."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Element = TypeVar("Element", bound=np.generic)

BLOCK_COLUMNS = 16  # columns per block; the lanes of a vector are columns
INT8_DEPTH_MULTIPLE = 64  # the depth is padded to it: an AMX tile's share of a column
INT8_DEPTH_STEP = 4  # adjacent codes of a column, the operands of one dot product
INT8_ZERO_POINT = 128  # of the activations


def pack_int8(codes: NDArray[np.int8]) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """Return ``weight`` and ``offset`` of the operator QuantizedLinear for codes [K, N], as copies.

    ``weight`` is [Np/16, Kp/4, 16, 4], where K and N are zero-padded to multiples of 64 and 16.
    ``offset`` [N] is 128 · Σ_k codes, the sums' share of a zero point of 128.

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
    """Return the codes [K, N] from which ``pack_int8`` made ``weight``, as a copy.

    >>> unpack_int8(pack_int8(np.array([[1, 2], [3, -4]], np.int8))[0], (2, 2)).tolist()
    [[1, 2], [3, -4]]
    """
    blocks, steps, columns, step = weight.shape
    padded = weight.transpose(1, 3, 0, 2).reshape(steps * step, blocks * columns)
    return padded[: shape[0], : shape[1]].copy()


def gated_halves(tensor: NDArray[Element]) -> tuple[NDArray[Element], NDArray[Element]]:
    """Return views of the gate's and of the other half of a gated product's packed ``tensor``.

    Blocks of columns [blocks, ...] alternate, so that a block of the gate and the one that it
    multiplies are neighbours; of values per column [N], one half follows the other. Each half is
    packed like a product of its own, so both are padded to whole blocks.

    >>> [half.tolist() for half in gated_halves(np.arange(4).reshape(4, 1))]
    [[[0], [2]], [[1], [3]]]
    >>> [half.tolist() for half in gated_halves(np.arange(4))]
    [[0, 1], [2, 3]]
    """
    if tensor.ndim > 1:
        return tensor[0::2], tensor[1::2]
    half = len(tensor) // 2
    return tensor[:half], tensor[half:]


def pack_float(weight: NDArray[Element]) -> NDArray[Element]:
    """Return ``weight`` of the operator FloatLinear for float weights [K, N], as a copy.

    It is [Np/16, K, 16], where N is zero-padded to a multiple of 16.

    >>> pack_float(np.ones((3, 20), np.float16)).shape
    (2, 3, 16)
    """
    padded = np.pad(weight, ((0, 0), (0, -weight.shape[1] % BLOCK_COLUMNS)))
    blocks = padded.reshape(len(weight), -1, BLOCK_COLUMNS)
    return np.ascontiguousarray(blocks.transpose(1, 0, 2))


def unpack_float(weight: NDArray[Element], columns: int) -> NDArray[Element]:
    """Return the weights [K, columns] from which ``pack_float`` made ``weight``, as a copy."""
    blocks, depth, together = weight.shape
    return weight.transpose(1, 0, 2).reshape(depth, blocks * together)[:, :columns].copy()


def pack_int4(
    codes: NDArray[np.uint8], scale: NDArray[Element]
) -> tuple[NDArray[np.uint8], NDArray[Element]]:
    """Return ``weight`` and ``scale`` of the operator BlockLinear4 from those of MatMulNBits.

    ``codes`` uint8 [N, blocks, block_size / 2] has two codes per byte, the first in the low bits;
    ``scale`` is [N, blocks], of any dtype. The new ``weight`` is uint8 [Np/16, Kp/8, 16, 4] with
    Kp = blocks · block_size and Np = N rounded up to a multiple of 16: a byte has input k in its
    low bits and k + 4 in the high ones, so a mask and a shift yield the operands of two dot
    products. The new ``scale`` is [Np/16, blocks, 16]. Beyond N, codes are 8 and scales 0. Both are
    copies.

    >>> codes = np.arange(16, dtype=np.uint8).reshape(1, 1, 16) * 17  # 0 0 1 1 … 15 15
    >>> weight, scale = pack_int4(codes, np.array([[0.5]], np.float32))
    >>> weight.shape, [f"{byte:02x}" for byte in weight[0, 0, 0]], scale[0, 0, :2].tolist()
    ((1, 4, 16, 4), ['20', '20', '31', '31'], [0.5, 0.0])
    """
    columns = len(codes)
    pairs = np.pad(
        codes.reshape(columns, -1, 4),
        ((0, -columns % BLOCK_COLUMNS), (0, 0), (0, 0)),
        constant_values=0x88,
    )
    ordered = np.empty_like(pairs)  # inputs in the order 0 4, 1 5, 2 6, 3 7
    ordered[..., 0::2] = pairs[..., :2] & 15 | pairs[..., 2:] << 4
    ordered[..., 1::2] = pairs[..., :2] >> 4 | pairs[..., 2:] & 0xF0
    weight = ordered.reshape(-1, BLOCK_COLUMNS, *pairs.shape[1:]).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(weight), _pack_scales(scale)


def unpack_int4(
    weight: NDArray[np.uint8], scale: NDArray[Element], columns: int
) -> tuple[NDArray[np.uint8], NDArray[Element]]:
    """Return the codes and scales of ``columns`` columns given to ``pack_int4``, as copies.

    >>> packed = pack_int4(np.full((1, 1, 16), 0x5B, np.uint8), np.array([[0.5]], np.float32))
    >>> codes, scale = unpack_int4(*packed, columns=1)
    >>> f"{codes[0, 0, 0]:02x}", codes.shape, scale.tolist()
    ('5b', (1, 1, 16), [[0.5]])
    """
    blocks = scale.shape[1]
    ordered = weight.transpose(0, 2, 1, 3).reshape(-1, weight.shape[1], 4)[:columns]
    pairs = np.empty_like(ordered)
    pairs[..., :2] = ordered[..., 0::2] & 15 | ordered[..., 1::2] << 4
    pairs[..., 2:] = ordered[..., 0::2] >> 4 | ordered[..., 1::2] & 0xF0
    return pairs.reshape(columns, blocks, -1), _unpack_scales(scale, columns)


def pack_int8_blocks(
    codes: NDArray[np.uint8], scale: NDArray[Element]
) -> tuple[NDArray[np.int8], NDArray[Element]]:
    """Return ``weight`` and ``scale`` of the operator BlockLinear8 from those of MatMulNBits.

    ``codes`` uint8 [N, blocks, block_size] are 128 more than the integers that they represent;
    ``scale`` is [N, blocks], of any dtype. The new ``weight`` has these integers as int8 [Np/16,
    Kp/4, 16, 4] with Kp = blocks · block_size and Np = N rounded up to a multiple of 16; the new
    ``scale`` is [Np/16, blocks, 16]. Beyond N, both are 0. Both are copies.

    >>> codes = np.arange(120, 136, dtype=np.uint8).reshape(1, 1, 16)
    >>> weight, scale = pack_int8_blocks(codes, np.array([[0.5]], np.float32))
    >>> weight.shape, weight[0, 2, :2].tolist(), scale[0, 0, :2].tolist()
    ((1, 4, 16, 4), [[0, 1, 2, 3], [0, 0, 0, 0]], [0.5, 0.0])
    """
    columns = len(codes)
    integers = (
        (codes ^ np.uint8(INT8_ZERO_POINT)).view(np.int8).reshape(columns, -1, INT8_DEPTH_STEP)
    )
    padded = np.pad(integers, ((0, -columns % BLOCK_COLUMNS), (0, 0), (0, 0)))
    weight = padded.reshape(-1, BLOCK_COLUMNS, *padded.shape[1:]).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(weight), _pack_scales(scale)


def unpack_int8_blocks(
    weight: NDArray[np.int8], scale: NDArray[Element], columns: int
) -> tuple[NDArray[np.uint8], NDArray[Element]]:
    """Return the codes and scales of ``columns`` columns given to ``pack_int8_blocks``, as copies.

    >>> packed = pack_int8_blocks(np.full((1, 1, 16), 130, np.uint8), np.array([[0.5]], np.float32))
    >>> codes, scale = unpack_int8_blocks(*packed, columns=1)
    >>> codes[0, 0, 0].item(), codes.shape, scale.tolist()
    (130, (1, 1, 16), [[0.5]])
    """
    integers = weight.transpose(0, 2, 1, 3).reshape(-1, weight.shape[1] * INT8_DEPTH_STEP)[:columns]
    codes = np.ascontiguousarray(integers).view(np.uint8) ^ np.uint8(INT8_ZERO_POINT)
    return codes.reshape(columns, scale.shape[1], -1), _unpack_scales(scale, columns)


def _pack_scales(scale: NDArray[Element]) -> NDArray[Element]:
    """Return scales [N, blocks] as [Np/16, blocks, 16], with 0 beyond N; a copy."""
    columns, blocks = scale.shape
    padded = np.pad(scale, ((0, -columns % BLOCK_COLUMNS), (0, 0)))
    return np.ascontiguousarray(padded.reshape(-1, BLOCK_COLUMNS, blocks).transpose(0, 2, 1))


def _unpack_scales(scale: NDArray[Element], columns: int) -> NDArray[Element]:
    """Return the scales [columns, blocks] given to ``_pack_scales``, as a copy."""
    return scale.transpose(0, 2, 1).reshape(-1, scale.shape[1])[:columns].copy()
