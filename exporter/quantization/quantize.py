"""Quantised weights and their dequantisation.

numpy only, no graph: ``graphs/onnxruntime.py`` builds the nodes that use these tensors, and
verification recomputes them with these functions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from ...engines.errors import NotFiniteError, UsageError
from ...engines.importing import load
from ...engines.manifest import (
    NUM_JOINED,
    EngineKind,
    FloatType,
    ModelSpec,
    PrecisionSpec,
    Quantization,
)
from ...engines.memory import Array
from ...engines.targets import target_of
from ..architecture.architecture import kind_parameters

if TYPE_CHECKING:
    from ..architecture.weights import Parameter

FloatArray = NDArray[np.float32]

KINDS_WITH_PRODUCTS = (EngineKind.LAYER, EngineKind.HEAD, *NUM_JOINED)

ACTIVATION_ZERO_POINT = 128  # for uint8 activations; int8 would use a kernel 40 times slower
ACTIVATION_MAXIMUM = 127
WEIGHT_MAXIMUM = 127

NOT_FINITE = "has NaN or infinity; export a checkpoint without them"

_LEAST_PEAK = np.float32(WEIGHT_MAXIMUM) * np.finfo(np.float32).tiny  # has a normal scale
_BLOCK_ELEMENTS = 1 << 19  # weights quantised at a time: 2 MiB of float32 stay in the cache


class WeightQuantizer(ABC):
    """Converts a weight [K, N] (in, out) to the tensors that a quantised product reads."""

    @abstractmethod
    def layout(self, shape: tuple[int, int]) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return dtype and shape of every tensor for a weight of ``shape``, by tensor name."""

    @abstractmethod
    def encode(self, weight: Array) -> dict[str, Array]:
        """Quantise ``weight`` [K, N], float16 or float32; needs memory for the result and a block.

        Raises NotFiniteError if a weight or a scale is not finite.
        """

    @abstractmethod
    def decode(self, tensors: Mapping[str, Array], shape: tuple[int, int]) -> FloatArray:
        """Return the float32 weight [K, N], of ``shape``, that ``tensors`` represent."""

    def fitting(self, parameter: Parameter) -> WeightQuantizer:
        """Return the quantiser of the weight ``parameter``, which may depend on its use."""
        return self

    def dequantized(self, weight: Array) -> FloatArray:
        """Return ``weight`` [K, N] as its quantised form represents it."""
        return self.decode(self.encode(weight), weight.shape)


@dataclass(frozen=True)
class ChannelQuantizer(WeightQuantizer):
    """Symmetric int8 with one scale per output channel (column), for int8 (W8A8) products.

    ``scale[n] = max|w[:, n]| / 127``. Example: the column (-1.0, 0.5, 0.3) has scale 1/127 and
    codes (-127, 64, 38). A column whose scale would be subnormal is stored as zeros.
    """

    def layout(self, shape: tuple[int, int]) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return ``quantized`` int8 [K, N] and ``scale`` float32 [N]."""
        return {"quantized": ("int8", shape), "scale": ("float32", shape[1:])}

    @override
    def encode(self, weight: Array) -> dict[str, Array]:
        quantized = np.empty(weight.shape, np.int8)
        scale = np.empty(weight.shape[1], np.float32)
        for columns, block in column_blocks(weight):
            peak = finite(np.abs(block).max(axis=1))  # [n]
            peak[peak < _LEAST_PEAK] = 1
            scale[columns] = peak / np.float32(WEIGHT_MAXIMUM)
            block /= scale[columns, None]
            quantized[:, columns] = np.rint(block, out=block).T
        return {"quantized": quantized, "scale": scale}

    def decode(self, tensors: Mapping[str, Array], shape: tuple[int, int]) -> FloatArray:
        """Return ``quantized * scale``."""
        return np.multiply(tensors["quantized"], tensors["scale"], dtype=np.float32)


@dataclass(frozen=True)
class BlockQuantizer(WeightQuantizer):
    """Symmetric int4 or int8 with one scale per ``block_size`` inputs of a column: MatMulNBits.

    The operator's layout: ``quantized`` uint8 [N, blocks, block_size * bits / 8], low nibble first,
    zero point ``2 ** (bits - 1)``; ``scale`` [N, blocks]. The element of largest magnitude maps to
    the lowest code, so all codes are used. Scales are rounded to ``scale_type`` before codes are
    computed. Example, 4 bits: the block (0.5, -1.0, 0.25) has scale -1.0 / -8 = 0.125 and codes
    (12, 0, 10).
    """

    bits: int
    block_size: int
    scale_type: FloatType = "float32"  # MatMulNBits requires the type of its activations

    @property
    def zero_point(self) -> int:
        """Return the code of 0.0."""
        return 1 << (self.bits - 1)

    @override
    def layout(self, shape: tuple[int, int]) -> dict[str, tuple[str, tuple[int, ...]]]:
        in_size, out_size = shape
        blocks = -(-in_size // self.block_size)
        codes = (out_size, blocks, self.block_size * self.bits // 8)
        return {"quantized": ("uint8", codes), "scale": (self.scale_type, (out_size, blocks))}

    def encode(self, weight: Array) -> dict[str, Array]:
        """Quantise in blocks; inputs beyond K in the last block count as 0."""
        in_size = weight.shape[0]
        (_, codes_shape), (_, scale_shape) = self.layout(weight.shape).values()
        quantized, scale = np.empty(codes_shape, np.uint8), np.empty(scale_shape, self.scale_type)
        padding = scale_shape[1] * self.block_size - in_size
        for columns, block in column_blocks(weight):
            if padding:
                block = np.pad(block, ((0, 0), (0, padding)))
            blocked = block.reshape(len(block), -1, self.block_size)  # [n, blocks, block_size]
            high, low = finite(blocked.max(axis=2)), finite(blocked.min(axis=2))
            peak = np.where(high > -low, high, low) / np.float32(-self.zero_point)
            with np.errstate(over="ignore"):  # `finite` refuses the result
                rounded = finite(peak.astype(scale.dtype))
            rounded[rounded == 0] = 1
            scale[columns] = rounded
            blocked /= rounded.astype(np.float32)[..., None]
            np.rint(blocked, out=blocked)
            blocked += self.zero_point
            np.clip(blocked, 0, 2 * self.zero_point - 1, out=blocked)
            codes = blocked.astype(np.uint8)
            quantized[columns] = (
                codes if self.bits == 8 else codes[..., ::2] | (codes[..., 1::2] << 4)
            )
        return {"quantized": quantized, "scale": scale}

    def decode(self, tensors: Mapping[str, Array], shape: tuple[int, int]) -> FloatArray:
        """Return ``(code - zero_point) * scale``."""
        codes = tensors["quantized"]
        if self.bits == 4:
            codes = np.stack((codes & 15, codes >> 4), axis=-1).reshape(*codes.shape[:2], -1)
        centred = codes.astype(np.float32) - np.float32(self.zero_point)
        scale = tensors["scale"].astype(np.float32, copy=False)
        weight = centred * scale[..., None]  # [N, blocks, block_size]
        return weight.reshape(len(weight), -1)[:, : shape[0]].T


def quantization(kind: EngineKind, precision: PrecisionSpec) -> Quantization:
    """Return the quantisation of the products of an engine of ``kind``; "none" without products."""
    if kind not in KINDS_WITH_PRODUCTS:
        return "none"
    return precision.head_quantize if kind is EngineKind.HEAD else precision.quantize


def quantizer_of(target: str, kind: EngineKind, precision: PrecisionSpec) -> WeightQuantizer | None:
    """Return the quantiser of weights in engines of ``kind`` for ``target``, if any."""
    quantizer: WeightQuantizer | None = load(target_of(target).quantizer)(kind, precision)
    return quantizer


def stored_layout(
    kind: EngineKind, model: ModelSpec, precision: PrecisionSpec, form: str
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return dtype and shape of every weight in the graph of an engine of ``kind``, by name."""
    quantizer, target = quantizer_of(form, kind, precision), target_of(form)
    stored: dict[str, tuple[str, tuple[int, ...]]] = {}
    for parameter in kind_parameters(kind, model):
        if quantizer is not None and parameter.is_product:
            in_size, out_size = parameter.shape
            layout = quantizer.fitting(parameter).layout((in_size, out_size))
            stored |= {f"{parameter.name}.{suffix}": each for suffix, each in layout.items()}
        else:
            dtype = parameter.float_dtype(precision, target.has_float32_activations)
            stored[parameter.name] = dtype, parameter.shape
    return stored


def weight_quantizer(kind: EngineKind, precision: PrecisionSpec) -> WeightQuantizer | None:
    """Return the quantiser of the products of an engine of ``kind``; None leaves them float."""
    match choice := quantization(kind, precision):
        case "none":
            return None
        case "int8":
            return ChannelQuantizer()
        case "int8-block" | "int4":
            assert precision.block_size is not None
            scale_type: FloatType = "float16" if precision.dtype == "float16" else "float32"
            return BlockQuantizer(4 if choice == "int4" else 8, precision.block_size, scale_type)
        case "fp8":
            raise UsageError("quantize", "is fp8, which ONNX Runtime has no kernels for")


def column_blocks(weight: Array) -> Iterator[tuple[slice, FloatArray]]:
    """Yield (columns, float32 copy [n, K] of those columns, transposed)."""
    for columns in column_slices(weight.shape):
        yield columns, np.array(weight[:, columns].T, np.float32, order="C")


def column_slices(shape: tuple[int, ...], multiple: int = 1) -> Iterator[slice]:
    """Yield slices of a weight's columns, all but the last a multiple of ``multiple`` wide."""
    in_size, out_size = shape
    step = max(1, _BLOCK_ELEMENTS // in_size // multiple) * multiple
    for start in range(0, out_size, step):
        yield slice(start, min(start + step, out_size))


def finite(extremes: FloatArray) -> FloatArray:
    """Return ``extremes`` unchanged. Raises NotFiniteError if one is not finite."""
    if not np.isfinite(extremes).all():
        raise NotFiniteError("weight", NOT_FINITE)
    return extremes
