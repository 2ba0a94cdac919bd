"""Weights for skipdec's own kernels: their layout, and what they stand for at any magnitude."""

from __future__ import annotations

import numpy as np
import pytest

from skipdec.exporter.quantization.packed import PackedInt4Quantizer
from skipdec.exporter.quantization.quantize import BlockQuantizer


def weight(shape: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


@pytest.mark.parametrize("shape", [(64, 16), (80, 9), (1, 1)])
def test_layout_is_what_encode_makes_and_decode_reads(shape: tuple[int, int]) -> None:
    quantizer, original = PackedInt4Quantizer(32), weight(shape)
    tensors = quantizer.encode(original.astype(np.float16))
    layout = {name: (str(tensor.dtype), tensor.shape) for name, tensor in tensors.items()}
    assert layout == quantizer.layout(shape)
    decoded = quantizer.decode(quantizer.encode(original))
    np.testing.assert_array_equal(decoded[: shape[0], : shape[1]], quantizer.dequantized(original))
    np.testing.assert_array_equal(decoded[:, shape[1] :], 0)


@pytest.mark.parametrize("magnitude", [1e-34, 1e-8, 1.0, 1e34])
def test_short_scales_cost_next_to_nothing_at_any_magnitude(magnitude: float) -> None:
    original = weight((256, 64)) * np.float32(magnitude)

    def error(quantizer: BlockQuantizer | PackedInt4Quantizer) -> float:
        return float(
            np.abs(quantizer.dequantized(original) / magnitude - original / magnitude).mean()
        )

    assert error(PackedInt4Quantizer(32)) < 1.005 * error(BlockQuantizer(4, 32))


def test_what_is_too_small_for_a_scale_is_zero() -> None:
    quantizer = PackedInt4Quantizer(32)
    np.testing.assert_array_equal(quantizer.dequantized(weight((32, 3)) * np.float32(1e-41)), 0)
