"""Quantised weights in the layout that skipdec's kernels read.

Codes and scales equal those of ONNX Runtime's quantisers (``plain``), so a bundle can be rewritten
for its operators without the checkpoint. numpy only.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import ml_dtypes  # noqa: F401  (registers bfloat16 with numpy)
import numpy as np
from typing_extensions import override

from ...engines.kernels.formats import fits_block_linear4
from ...engines.kernels.packing import (
    BLOCK_COLUMNS,
    INT8_DEPTH_MULTIPLE,
    INT8_DEPTH_STEP,
    pack_half,
    pack_int4,
    pack_int8,
    unpack_half,
    unpack_int4,
    unpack_int8,
)
from ...engines.manifest import EngineKind, PrecisionSpec
from ...engines.memory import Array
from . import quantize
from .quantize import (
    BlockQuantizer,
    ChannelQuantizer,
    FloatArray,
    WeightQuantizer,
    column_slices,
    finite,
)

HalfType = Literal["float16", "bfloat16"]
Layout = dict[str, tuple[str, tuple[int, ...]]]

_WITH_PRODUCTS = (EngineKind.LAYER, EngineKind.HEAD)


class PackedQuantizer(WeightQuantizer):
    """Produces the tensors of one of skipdec's operators, in the order of its inputs.

    The first axis of each tensor follows the columns of the weight, so a weight is packed in
    pieces of whole blocks of columns.
    """

    operator: ClassVar[str]

    @abstractmethod
    def pack(self, weight: Array) -> dict[str, Array]:
        """Quantise and pack some columns of a weight [K, n]; all tensors are new."""

    @abstractmethod
    def unpack(self, tensors: Mapping[str, Array], shape: tuple[int, int]) -> dict[str, Array]:
        """Return the tensors of ``plain`` for a weight [K, N]; without one, the weight as ""."""

    @property
    @abstractmethod
    def plain(self) -> WeightQuantizer | None:
        """Return ONNX Runtime's quantiser with the same codes; None if its weight is float."""

    def attributes(self, shape: tuple[int, int]) -> dict[str, int]:
        """Return the operator's attributes."""
        return {}

    @override
    def encode(self, weight: Array) -> dict[str, Array]:
        in_size, out_size = weight.shape
        tensors = {
            name: np.empty(shape, dtype)
            for name, (dtype, shape) in self.layout((in_size, out_size)).items()
        }
        ends = dict.fromkeys(tensors, 0)
        for columns in column_slices(weight.shape, BLOCK_COLUMNS):
            for name, part in self.pack(weight[:, columns]).items():
                start, ends[name] = ends[name], ends[name] + len(part)
                tensors[name][start : ends[name]] = part
        return tensors

    @override
    def decode(self, tensors: Mapping[str, Array], shape: tuple[int, int]) -> FloatArray:
        unpacked = self.unpack(tensors, shape)
        if self.plain is None:
            return unpacked[""].astype(np.float32)
        return self.plain.decode(unpacked, shape)


@dataclass(frozen=True)
class PackedChannelQuantizer(PackedQuantizer):
    """int8 with one scale per output channel, for QuantizedLinear."""

    operator = "QuantizedLinear"
    plain = ChannelQuantizer()

    def layout(self, shape: tuple[int, int]) -> Layout:
        """Return int8 codes [Np/16, Kp/4, 16, 4], float32 ``scale`` and int32 ``offset`` [N]."""
        in_size, out_size = shape
        depth = -(-in_size // INT8_DEPTH_MULTIPLE) * INT8_DEPTH_MULTIPLE // INT8_DEPTH_STEP
        blocks = -(-out_size // BLOCK_COLUMNS)
        return {
            "quantized": ("int8", (blocks, depth, BLOCK_COLUMNS, INT8_DEPTH_STEP)),
            "scale": ("float32", (out_size,)),
            "offset": ("int32", (out_size,)),
        }

    @override
    def pack(self, weight: Array) -> dict[str, Array]:
        plain = self.plain.encode(weight)
        packed, offset = pack_int8(plain["quantized"])
        return {"quantized": packed, "scale": plain["scale"], "offset": offset}

    @override
    def unpack(self, tensors: Mapping[str, Array], shape: tuple[int, int]) -> dict[str, Array]:
        return {
            "quantized": unpack_int8(tensors["quantized"], shape),
            "scale": np.asarray(tensors["scale"]),
        }


@dataclass(frozen=True)
class PackedInt4Quantizer(PackedQuantizer):
    """int4 for the operator BlockLinear4: ``BlockQuantizer``'s codes and scales, packed.

    Scales are bfloat16: as small as float16, with the range of float32, so weights of any magnitude
    are represented equally well. Because codes are computed from the rounded scale, its eight bits
    cost less than a fiftieth of a step at the largest element of a block and nothing elsewhere.
    ``block_size`` is one of those that `fits_block_linear4` allows.
    """

    block_size: int

    operator = "BlockLinear4"

    @property
    def plain(self) -> BlockQuantizer:
        """Return the quantiser with which MatMulNBits computes the same."""
        return BlockQuantizer(4, self.block_size, "bfloat16")

    @override
    def attributes(self, shape: tuple[int, int]) -> dict[str, int]:
        return {"N": shape[1], "block_size": self.block_size}

    def layout(self, shape: tuple[int, int]) -> Layout:
        """Return uint8 codes [Np/16, Kp/8, 16, 4] and bfloat16 ``scale`` [Np/16, blocks, 16]."""
        in_size, out_size = shape
        blocks, panels = -(-in_size // self.block_size), -(-out_size // BLOCK_COLUMNS)
        depth = blocks * self.block_size // 8
        return {
            "quantized": ("uint8", (panels, depth, BLOCK_COLUMNS, 4)),
            "scale": ("bfloat16", (panels, blocks, BLOCK_COLUMNS)),
        }

    @override
    def pack(self, weight: Array) -> dict[str, Array]:
        plain = self.plain.encode(weight)
        quantized, scale = pack_int4(plain["quantized"], plain["scale"])
        return {"quantized": quantized, "scale": scale}

    @override
    def unpack(self, tensors: Mapping[str, Array], shape: tuple[int, int]) -> dict[str, Array]:
        quantized, scale = unpack_int4(tensors["quantized"], tensors["scale"], shape[1])
        return {"quantized": quantized, "scale": scale}


@dataclass(frozen=True)
class HalfQuantizer(PackedQuantizer):
    """16-bit weights, rounded to ``dtype``, for HalfLinear."""

    dtype: HalfType

    operator = "HalfLinear"
    plain = None

    @override
    def attributes(self, shape: tuple[int, int]) -> dict[str, int]:
        return {"N": shape[1]}

    def layout(self, shape: tuple[int, int]) -> Layout:
        """Return ``packed`` [Np/16, K, 16]."""
        in_size, out_size = shape
        blocks = -(-out_size // BLOCK_COLUMNS)
        return {"packed": (self.dtype, (blocks, in_size, BLOCK_COLUMNS))}

    @override
    def pack(self, weight: Array) -> dict[str, Array]:
        rounded = weight.astype(self.dtype)
        finite(np.abs(rounded).max(axis=0).astype(np.float32))
        return {"packed": pack_half(rounded)}

    @override
    def unpack(self, tensors: Mapping[str, Array], shape: tuple[int, int]) -> dict[str, Array]:
        return {"": unpack_half(tensors["packed"], shape[1])}


def weight_quantizer(kind: EngineKind, precision: PrecisionSpec) -> WeightQuantizer | None:
    """Return the quantiser of the products of an engine of ``kind``; None leaves them float32.

    int8 blocks, and int4 blocks with a size or accuracy that BlockLinear4 lacks, run on ONNX
    Runtime's operators.
    """
    match quantize.weight_quantizer(kind, precision):
        case None if precision.dtype != "float32" and kind in _WITH_PRODUCTS:
            return HalfQuantizer(precision.dtype)
        case ChannelQuantizer():
            return PackedChannelQuantizer()
        case BlockQuantizer(bits=4, block_size=size) if fits_block_linear4(precision):
            return PackedInt4Quantizer(size)
        case other:
            return other
