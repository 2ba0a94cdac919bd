"""Weights in the order in which skipdec's kernels read them.

Codes and scales are those of the quantisers for ONNX Runtime, ``plain``, so that a bundle can be
rewritten for its operators without the checkpoint. numpy only.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import ml_dtypes  # noqa: F401  (numpy learns of bfloat16)
import numpy as np

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

INT4_BLOCK_SIZES = (32, 64, 128)  # that BlockLinear4 takes
HalfType = Literal["float16", "bfloat16"]
Layout = dict[str, tuple[str, tuple[int, ...]]]

_WITH_PRODUCTS = (EngineKind.LAYER, EngineKind.HEAD)


class PackedQuantizer(WeightQuantizer):
    """Makes the tensors of one of skipdec's operators, in the order of its inputs.

    The first axis of each goes with the columns of the weight, so that a weight is packed in
    pieces, whole blocks of columns at a time.
    """

    operator: ClassVar[str]

    @abstractmethod
    def pack(self, weight: Array) -> dict[str, Array]:
        """Quantise and pack some columns of a weight [K, n]; all tensors are new."""

    @abstractmethod
    def unpack(self, tensors: Mapping[str, Array], shape: tuple[int, int]) -> dict[str, Array]:
        """The tensors of ``plain``, of a weight [K, N] of ``shape``; "" without one: the weight."""

    @property
    @abstractmethod
    def plain(self) -> WeightQuantizer | None:
        """What makes the same codes for ONNX Runtime; None: its product takes the weight itself."""

    def attributes(self, shape: tuple[int, int]) -> dict[str, int]:
        """What the operator is told beside its tensors."""
        return {}

    def encode(self, weight: Array) -> dict[str, Array]:
        """See WeightQuantizer."""
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

    def decode(self, tensors: Mapping[str, Array], shape: tuple[int, int]) -> FloatArray:
        """See WeightQuantizer."""
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
        """``quantized`` int8 [Np/16, Kp/4, 16, 4], ``scale`` float32 [N], ``offset`` int32 [N]."""
        in_size, out_size = shape
        depth = -(-in_size // INT8_DEPTH_MULTIPLE) * INT8_DEPTH_MULTIPLE // INT8_DEPTH_STEP
        blocks = -(-out_size // BLOCK_COLUMNS)
        return {
            "quantized": ("int8", (blocks, depth, BLOCK_COLUMNS, INT8_DEPTH_STEP)),
            "scale": ("float32", (out_size,)),
            "offset": ("int32", (out_size,)),
        }

    def pack(self, weight: Array) -> dict[str, Array]:
        """See PackedQuantizer."""
        plain = self.plain.encode(weight)
        packed, offset = pack_int8(plain["quantized"])
        return {"quantized": packed, "scale": plain["scale"], "offset": offset}

    def unpack(self, tensors: Mapping[str, Array], shape: tuple[int, int]) -> dict[str, Array]:
        """See PackedQuantizer."""
        return {
            "quantized": unpack_int8(tensors["quantized"], shape),
            "scale": np.asarray(tensors["scale"]),
        }


@dataclass(frozen=True)
class PackedInt4Quantizer(PackedQuantizer):
    """int4 for the operator BlockLinear4: ``BlockQuantizer``'s codes and scales, packed.

    Scales are bfloat16: as few bytes as float16, and the range of float32, so that weights of any
    magnitude are represented alike; since codes are made from the rounded scale, its eight bits
    cost less than a fiftieth of a step at the largest element of a block and nothing elsewhere.
    ``block_size`` is one of ``INT4_BLOCK_SIZES``.
    """

    block_size: int

    operator = "BlockLinear4"

    @property
    def plain(self) -> BlockQuantizer:
        """See PackedQuantizer: with its tensors MatMulNBits computes the same."""
        return BlockQuantizer(4, self.block_size, "bfloat16")

    def attributes(self, shape: tuple[int, int]) -> dict[str, int]:
        """See PackedQuantizer."""
        return {"N": shape[1], "block_size": self.block_size}

    def layout(self, shape: tuple[int, int]) -> Layout:
        """``quantized`` uint8 [Np/16, Kp/8, 16, 4] and ``scale`` bfloat16 [Np/16, blocks, 16]."""
        in_size, out_size = shape
        blocks, panels = -(-in_size // self.block_size), -(-out_size // BLOCK_COLUMNS)
        depth = blocks * self.block_size // 8
        return {
            "quantized": ("uint8", (panels, depth, BLOCK_COLUMNS, 4)),
            "scale": ("bfloat16", (panels, blocks, BLOCK_COLUMNS)),
        }

    def pack(self, weight: Array) -> dict[str, Array]:
        """See PackedQuantizer."""
        plain = self.plain.encode(weight)
        quantized, scale = pack_int4(plain["quantized"], plain["scale"])
        return {"quantized": quantized, "scale": scale}

    def unpack(self, tensors: Mapping[str, Array], shape: tuple[int, int]) -> dict[str, Array]:
        """See PackedQuantizer."""
        quantized, scale = unpack_int4(tensors["quantized"], tensors["scale"], shape[1])
        return {"quantized": quantized, "scale": scale}


@dataclass(frozen=True)
class HalfQuantizer(PackedQuantizer):
    """Weights of 16 bits, rounded to ``dtype``, for HalfLinear."""

    dtype: HalfType

    operator = "HalfLinear"
    plain = None

    def attributes(self, shape: tuple[int, int]) -> dict[str, int]:
        """See PackedQuantizer."""
        return {"N": shape[1]}

    def layout(self, shape: tuple[int, int]) -> Layout:
        """``packed`` [Np/16, K, 16]."""
        in_size, out_size = shape
        blocks = -(-out_size // BLOCK_COLUMNS)
        return {"packed": (self.dtype, (blocks, in_size, BLOCK_COLUMNS))}

    def pack(self, weight: Array) -> dict[str, Array]:
        """See PackedQuantizer."""
        rounded = weight.astype(self.dtype)
        finite(np.abs(rounded).max(axis=0).astype(np.float32))
        return {"packed": pack_half(rounded)}

    def unpack(self, tensors: Mapping[str, Array], shape: tuple[int, int]) -> dict[str, Array]:
        """See PackedQuantizer."""
        return {"": unpack_half(tensors["packed"], shape[1])}


def weight_quantizer(kind: EngineKind, precision: PrecisionSpec) -> WeightQuantizer | None:
    """The quantiser of the products of an engine of ``kind``; None leaves them float32.

    Blocks of int8, and of int4 in a size or at an accuracy that BlockLinear4 has not, are left to
    ONNX Runtime.
    """
    match quantize.weight_quantizer(kind, precision):
        case None if precision.dtype != "float32" and kind in _WITH_PRODUCTS:
            return HalfQuantizer(precision.dtype)
        case ChannelQuantizer():
            return PackedChannelQuantizer()
        case BlockQuantizer(bits=4, block_size=size) if _fits_block_linear4(precision):
            return PackedInt4Quantizer(size)
        case other:
            return other


def _fits_block_linear4(precision: PrecisionSpec) -> bool:
    return precision.block_size in INT4_BLOCK_SIZES and precision.accuracy_level == 4
