"""The int4 values that a block of weights may take, so that export finds the very codes again.

An exporter rounds to nearest: it takes a block's scale from its largest magnitude. A block whose
largest magnitude *is* the grid's lowest code times the scale, in the type that it is stored in, is
therefore found again bit for bit. Worked, ONNX Runtime, scale 0.125: the block (-1.0, 0.5, 0.25)
has its extreme at code -8, so export reads the scale -1.0 / -8 and the codes (-8, 4, 2).
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

    ``dtype`` is float16 or float32, the checkpoint's. A scale may be negative: its lowest code
    stands at the block's extreme, whatever the sign.
    """

    block_size: int
    dtype: torch.dtype

    @property
    @abstractmethod
    def lowest_code(self) -> int:
        """The code of the extreme."""

    @property
    @abstractmethod
    def quantizer(self) -> WeightQuantizer:
        """The exporter's own, which rounds to nearest."""

    @abstractmethod
    def scales(self, extremes: Tensor) -> Tensor:
        """The scales nearest to ``extremes / lowest_code`` that export finds again.

        Both float32 of one shape. 0 where the extreme is too small for that.
        """

    def codes(self, weights: Tensor, scales: Tensor) -> Tensor:
        """The nearest codes, float32; ``scales`` without zeros."""
        return torch.clamp(torch.round(weights / scales), self.lowest_code, HIGHEST_CODE)


class OnnxRuntimeGrid(Int4Grid):
    """Codes -8 to 7 of MatMulNBits and of BlockLinear4: see BlockQuantizer.

    Scales are bfloat16 values, as BlockLinear4 stores them, so that both find the same codes.
    """

    @property
    def lowest_code(self) -> int:
        """-8."""
        return -8

    @property
    def quantizer(self) -> WeightQuantizer:
        """Blocks of the inputs, the last one filled up."""
        return BlockQuantizer(4, self.block_size)

    def scales(self, extremes: Tensor) -> Tensor:
        """An eighth of a stored value is exact, in bfloat16 as in float32."""
        return _without_the_smallest(extremes.bfloat16().to(self.dtype)) / self.lowest_code


class TensorRtGrid(Int4Grid):
    """Codes -7 to 7 of DequantizeLinear with scales in float16: see LinearBlockQuantizer."""

    @property
    def lowest_code(self) -> int:
        """-7."""
        return -7

    @property
    def quantizer(self) -> WeightQuantizer:
        """Blocks of the inputs, which have to divide them."""
        return LinearBlockQuantizer(4, self.block_size, "float16")

    def scales(self, extremes: Tensor) -> Tensor:
        """Seven times a scale may be rounded in a float16 engine; what is read back then is kept,
        whatever the checkpoint's type.
        """
        scales = (extremes / self.lowest_code).half().float()
        stored = _without_the_smallest((scales * self.lowest_code).half())
        return (stored / self.lowest_code).half().float()


GRIDS: Mapping[GridTarget, type[Int4Grid]] = {
    "onnxruntime": OnnxRuntimeGrid,
    "tensorrt": TensorRtGrid,
}


def _without_the_smallest(stored: Tensor) -> Tensor:
    """``stored`` in float32, 0 where rounding a small multiple to its type could change a code."""
    smallest = torch.finfo(stored.dtype).smallest_normal / 64
    return torch.where(stored.abs() < smallest, 0.0, stored.float())
