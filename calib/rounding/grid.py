"""The int4 values that a block of weights may take such that export finds the same codes.

An exporter rounds to nearest and derives a block's scale from its largest magnitude. If that
magnitude *is* the lowest code times the scale, in the type that it is stored in, the codes are
found again bit for bit. Example for ONNX Runtime, scale 0.125: the block (-1.0, 0.5, 0.25) has its
extreme at code -8, so export reads the scale -1.0 / -8 and the codes (-8, 4, 2).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...exporter.quantization.linear import LinearBlockQuantizer
from ...exporter.quantization.quantize import BlockQuantizer, WeightQuantizer
from .config import GridTarget

HIGHEST_CODE = 7


@dataclass(frozen=True)
class Int4Grid(ABC):
    """Multiples of one scale per ``block_size`` inputs of a column, stored as ``dtype``.

    ``dtype`` is the checkpoint's, float16 or float32. A scale may be negative: the lowest code is
    the block's extreme, whatever its sign.
    """

    block_size: int
    dtype: torch.dtype

    @property
    @abstractmethod
    def lowest_code(self) -> int:
        """Code of the extreme."""

    @property
    @abstractmethod
    def quantizer(self) -> WeightQuantizer:
        """The exporter's own quantizer, which rounds to nearest."""

    @abstractmethod
    def scales(self, extremes: Tensor) -> Tensor:
        """Return the scales nearest to ``extremes / lowest_code`` that export finds again.

        Both are float32 of the same shape. 0 if the extreme is too small.
        """

    def codes(self, weights: Tensor, scales: Tensor) -> Tensor:
        """Return the nearest codes, float32; ``scales`` must not contain zeros."""
        return torch.clamp(torch.round(weights / scales), self.lowest_code, HIGHEST_CODE)


class OnnxRuntimeGrid(Int4Grid):
    """Codes -8 to 7 of MatMulNBits and of BlockLinear4: see BlockQuantizer.

    Scales are bfloat16 values, as BlockLinear4 stores them, so that both find the same codes.
    """

    @property
    def lowest_code(self) -> int:
        """Return -8."""
        return -8

    @property
    def quantizer(self) -> WeightQuantizer:
        """Quantizes blocks of the inputs; the last block is padded."""
        return BlockQuantizer(4, self.block_size)

    def scales(self, extremes: Tensor) -> Tensor:
        """Return extremes rounded to bfloat16, divided by 8, which is exact in bfloat16 and
        float32.
        """
        return _without_the_smallest(extremes.bfloat16().to(self.dtype)) / self.lowest_code


class TensorRtGrid(Int4Grid):
    """Codes -7 to 7 of DequantizeLinear with scales in float16: see LinearBlockQuantizer."""

    @property
    def lowest_code(self) -> int:
        """Return -7."""
        return -7

    @property
    def quantizer(self) -> WeightQuantizer:
        """Quantizes blocks of the inputs, whose number must be a multiple of the block size."""
        return LinearBlockQuantizer(4, self.block_size, "float16")

    def scales(self, extremes: Tensor) -> Tensor:
        """Return scales as read back from float16, in which seven times a scale may be rounded."""
        scales = (extremes / self.lowest_code).half().float()
        stored = _without_the_smallest((scales * self.lowest_code).half())
        return (stored / self.lowest_code).half().float()


GRIDS: Mapping[GridTarget, type[Int4Grid]] = {
    "onnxruntime": OnnxRuntimeGrid,
    "tensorrt": TensorRtGrid,
}


def _without_the_smallest(stored: Tensor) -> Tensor:
    """Return float32; 0 where rounding a small multiple to the stored type could change a code."""
    smallest = torch.finfo(stored.dtype).smallest_normal / 64
    return torch.where(stored.abs() < smallest, 0.0, stored.float())
