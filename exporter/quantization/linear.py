"""Quantised weights for the ONNX operator DequantizeLinear, as TensorRT uses it.

All forms are symmetric, keep the weight's shape [K, N], and have scales in the engine's own float
type, in which TensorRT multiplies. Scales are rounded to that type before codes are computed, so
the rounding costs almost nothing. numpy only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from typing_extensions import override

from ...engines.manifest import EngineKind, FloatType, PrecisionSpec
from ...engines.memory import Array
from .quantize import FloatArray, WeightQuantizer, column_blocks, finite, quantization

FLOAT8_MAXIMUM = 448.0  # largest e4m3fn value
INT8_MAXIMUM = 127
INT4_MAXIMUM = 7


@dataclass(frozen=True)
class LinearChannelQuantizer(WeightQuantizer):
    """int8 with one scale per output channel (column): DequantizeLinear with axis 1.

    ``scale[n] = max|w[:, n]| / 127``. Example: the column (-1.0, 0.5, 0.3) has scale 1/127 and
    codes (-127, 64, 38).
    """

    dtype: FloatType

    def layout(self, shape: tuple[int, int]) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return ``quantized`` int8 [K, N] and ``scale`` [N]."""
        return {"quantized": ("int8", shape), "scale": (self.dtype, shape[1:])}

    @override
    def encode(self, weight: Array) -> dict[str, Array]:
        quantized = np.empty(weight.shape, np.int8)
        scale = np.empty(weight.shape[1], self.dtype)
        for columns, block in column_blocks(weight):
            scale[columns] = _scales(block, 1, INT8_MAXIMUM, self.dtype)
            codes = _codes(block, scale[columns, None], INT8_MAXIMUM)
            quantized[:, columns] = codes.T
        return {"quantized": quantized, "scale": scale}

    def decode(self, tensors: Mapping[str, Array], shape: tuple[int, int]) -> FloatArray:
        """Return ``quantized * scale``."""
        return np.multiply(tensors["quantized"], tensors["scale"].astype(np.float32))


@dataclass(frozen=True)
class LinearBlockQuantizer(WeightQuantizer):
    """int4 or int8 with one scale per ``block_size`` inputs of a column: axis 0, block_size.

    Example, 4 bits: the block (0.4, -1.0, 0.25) has scale 1/7 and codes (3, -7, 2).
    ``block_size`` divides K.
    """

    bits: int
    block_size: int
    dtype: FloatType

    @property
    def maximum(self) -> int:
        """Return the largest quantised magnitude."""
        return INT4_MAXIMUM if self.bits == 4 else INT8_MAXIMUM

    def layout(self, shape: tuple[int, int]) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return ``quantized`` int4 or int8 [K, N] and ``scale`` [K / block_size, N]."""
        in_size, out_size = shape
        scale_shape = (in_size // self.block_size, out_size)
        return {"quantized": (f"int{self.bits}", shape), "scale": (self.dtype, scale_shape)}

    def encode(self, weight: Array) -> dict[str, Array]:
        """Quantise in blocks; int4 is returned as ``ml_dtypes.int4``, one byte per element."""
        in_size, _ = weight.shape
        assert in_size % self.block_size == 0, (in_size, self.block_size)
        (_, shape), (_, scale_shape) = self.layout(weight.shape).values()
        quantized = np.empty(shape, ml_dtypes.int4 if self.bits == 4 else np.int8)
        scale = np.empty(scale_shape, self.dtype)
        for columns, block in column_blocks(weight):
            blocked = block.reshape(len(block), -1, self.block_size)  # [n, blocks, block_size]
            scale[:, columns] = _scales(blocked, 2, self.maximum, self.dtype).T
            codes = _codes(blocked, scale[:, columns].T[..., None], self.maximum)
            quantized[:, columns] = codes.reshape(block.shape).T.astype(quantized.dtype)
        return {"quantized": quantized, "scale": scale}

    def decode(self, tensors: Mapping[str, Array], shape: tuple[int, int]) -> FloatArray:
        """Return ``quantized * scale``."""
        scale = np.repeat(tensors["scale"].astype(np.float32), self.block_size, axis=0)  # [K, N]
        return np.multiply(tensors["quantized"].astype(np.float32), scale)


@dataclass(frozen=True)
class Float8Quantizer(WeightQuantizer):
    """fp8 (e4m3) with one scale per weight: max|w| maps to 448, the largest value."""

    dtype: FloatType

    def layout(self, shape: tuple[int, int]) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return ``quantized`` float8_e4m3fn [K, N] and ``scale``, a scalar."""
        return {"quantized": ("float8_e4m3fn", shape), "scale": (self.dtype, ())}

    @override
    def encode(self, weight: Array) -> dict[str, Array]:
        peaks = [np.abs(block).max() for _, block in column_blocks(weight)]
        scale = _scales(np.array(peaks, np.float32), 0, FLOAT8_MAXIMUM, self.dtype)  # []
        quantized = np.empty(weight.shape, ml_dtypes.float8_e4m3fn)
        for columns, block in column_blocks(weight):
            block /= np.float32(scale)
            np.clip(block, -FLOAT8_MAXIMUM, FLOAT8_MAXIMUM, out=block)  # the type has no infinity
            quantized[:, columns] = block.T.astype(quantized.dtype)
        return {"quantized": quantized, "scale": scale}

    def decode(self, tensors: Mapping[str, Array], shape: tuple[int, int]) -> FloatArray:
        """Return ``quantized * scale``."""
        return np.multiply(tensors["quantized"].astype(np.float32), np.float32(tensors["scale"]))


def weight_quantizer(kind: EngineKind, precision: PrecisionSpec) -> WeightQuantizer | None:
    """Return the quantiser of the products of an engine of ``kind``; None leaves them float."""
    match choice := quantization(kind, precision):
        case "none":
            return None
        case "int8":
            return LinearChannelQuantizer(precision.dtype)
        case "fp8":
            return Float8Quantizer(precision.dtype)
        case "int8-block" | "int4":
            assert precision.block_size is not None
            bits = 4 if choice == "int4" else 8
            return LinearBlockQuantizer(bits, precision.block_size, precision.dtype)


def _scales(weights: FloatArray, axis: int, maximum: float, dtype: FloatType) -> Array:
    """Return ``max|weights| / maximum`` along ``axis``, or 1 where it underflows in ``dtype``."""
    peaks = finite(np.abs(weights).max(axis=axis))
    with np.errstate(over="ignore"):  # `finite` refuses the result
        scales = finite((peaks / np.float32(maximum)).astype(dtype))
    return np.where(scales == 0, np.ones_like(scales), scales)


def _codes(weights: FloatArray, scales: Array, maximum: int) -> Array:
    """Round ``weights`` to multiples of ``scales``, in place, and return them as int8."""
    weights /= scales.astype(np.float32)
    np.rint(weights, out=weights)
    return np.clip(weights, -maximum, maximum, out=weights).astype(np.int8)
