"""Quantised weights in the order in which skipdec's own kernels read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes  # noqa: F401 - teaches numpy the name bfloat16

from ...engines.kernels.packing import pack_int4, unpack_int4
from ...engines.memory import Array
from .quantize import BlockQuantizer, FloatArray, WeightQuantizer


@dataclass(frozen=True)
class PackedInt4Quantizer(WeightQuantizer):
    """int4 for the operator BlockLinear4: ``BlockQuantizer``'s codes and scales, packed.

    Scales are bfloat16: as few bytes as float16, and the range of float32, so that weights of any
    magnitude are represented alike; since codes are made from the rounded scale, its eight bits
    cost less than a fiftieth of a step at the largest element of a block and nothing elsewhere.
    ``block_size`` is 32, 64 or 128.
    """

    block_size: int

    @property
    def unpacked(self) -> BlockQuantizer:
        """The quantiser whose tensors are packed here; with them MatMulNBits computes the same."""
        return BlockQuantizer(4, self.block_size, "bfloat16")

    def layout(self, shape: tuple[int, int]) -> dict[str, tuple[str, tuple[int, ...]]]:
        """``quantized`` uint8 [Np/16, Kp/8, 16, 4] and ``scale`` bfloat16 [Np/16, blocks, 16]."""
        (_, (columns, blocks, _)), _ = self.unpacked.layout(shape).values()
        panels = -(-columns // 16)
        return {
            "quantized": ("uint8", (panels, blocks * self.block_size // 8, 16, 4)),
            "scale": ("bfloat16", (panels, blocks, 16)),
        }

    def encode(self, weight: Array) -> dict[str, Array]:
        """See the class."""
        tensors = self.unpacked.encode(weight)
        quantized, scale = pack_int4(tensors["quantized"], tensors["scale"])
        return {"quantized": quantized, "scale": scale}

    def decode(self, tensors: Mapping[str, Array]) -> FloatArray:
        """``(code - 8) * scale``; [Kp, Np], padding included."""
        quantized, scale = tensors["quantized"], tensors["scale"]
        codes, scales = unpack_int4(quantized, scale, len(quantized) * 16)
        return self.unpacked.decode({"quantized": codes, "scale": scales})

    def dequantized(self, weight: Array) -> FloatArray:
        """``weight`` [K, N] as its quantised form represents it."""
        return self.unpacked.dequantized(weight)
