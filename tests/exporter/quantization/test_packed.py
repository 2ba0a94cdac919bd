"""Weights for skipdec's kernels: their layout, and their values at any magnitude."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from skipdec.exporter.quantization import quantize
from skipdec.exporter.quantization.packed import (
    FloatQuantizer,
    PackedBlockQuantizer,
    PackedChannelQuantizer,
    PackedInt4Quantizer,
    PackedInt8BlockQuantizer,
    PackedQuantizer,
)
from skipdec.exporter.quantization.quantize import BlockQuantizer


def weight(shape: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


PACKED = [
    PackedInt4Quantizer(32),
    PackedInt8BlockQuantizer(32),
    PackedChannelQuantizer(),
    FloatQuantizer("float32"),
    FloatQuantizer("float16"),
    FloatQuantizer("bfloat16"),
]
GATED = [replace(quantizer, is_gated=True) for quantizer in PACKED]


@pytest.mark.parametrize("quantizer", [*PACKED, *GATED])
@pytest.mark.parametrize("shape", [(64, 16), (80, 18), (96, 344), (1, 2)])
def test_encode_and_decode_round_trip(quantizer: PackedQuantizer, shape: tuple[int, int]) -> None:
    original = weight(shape)
    tensors = quantizer.encode(original.astype(np.float16))
    layout = {name: (str(tensor.dtype), tensor.shape) for name, tensor in tensors.items()}
    assert layout == quantizer.layout(shape)
    decoded = quantizer.decode(quantizer.encode(original), shape)
    np.testing.assert_array_equal(decoded, quantizer.dequantized(original))


@pytest.mark.parametrize(("gated", "plain"), list(zip(GATED, PACKED, strict=True)))
@pytest.mark.parametrize("width", [1, 16, 24, 172])
def test_a_gated_weight_has_the_codes_of_a_plain_weight(
    gated: PackedQuantizer, plain: PackedQuantizer, width: int
) -> None:
    shape = (80, 2 * width)
    unpacked = gated.unpack(gated.encode(weight(shape)), shape)
    for name, tensor in plain.unpack(plain.encode(weight(shape)), shape).items():
        np.testing.assert_array_equal(unpacked[name], tensor)


@pytest.mark.parametrize("quantizer", [*PACKED, *GATED])
def test_packing_in_pieces_gives_the_same_bytes(
    quantizer: PackedQuantizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = quantizer.encode(weight((48, 50)))
    monkeypatch.setattr(quantize, "_BLOCK_ELEMENTS", 48 * 16)
    for name, tensor in quantizer.encode(weight((48, 50))).items():
        assert tensor.tobytes() == whole[name].tobytes()


@pytest.mark.parametrize(
    "quantizer",
    [PackedInt4Quantizer(32), PackedInt8BlockQuantizer(32), PackedChannelQuantizer()],
)
def test_codes_and_scales_equal_those_of_onnx_runtimes_form(quantizer: PackedQuantizer) -> None:
    original = weight((80, 37))
    unpacked = quantizer.unpack(quantizer.encode(original), (80, 37))
    assert quantizer.plain is not None
    for name, tensor in quantizer.plain.encode(original).items():
        np.testing.assert_array_equal(unpacked[name], tensor)


@pytest.mark.parametrize("packed", [PackedInt4Quantizer(32), PackedInt8BlockQuantizer(32)])
@pytest.mark.parametrize("magnitude", [1e-34, 1e-8, 1.0, 1e34])
def test_short_scales_cost_almost_no_accuracy_at_any_magnitude(
    magnitude: float, packed: PackedBlockQuantizer
) -> None:
    original = weight((256, 64)) * np.float32(magnitude)

    def error(quantizer: BlockQuantizer | PackedBlockQuantizer) -> float:
        return float(
            np.abs(quantizer.dequantized(original) / magnitude - original / magnitude).mean()
        )

    assert error(packed) < 1.03 * error(BlockQuantizer(packed.bits, 32))


def test_values_too_small_for_a_scale_become_zero() -> None:
    quantizer = PackedInt4Quantizer(32)
    np.testing.assert_array_equal(quantizer.dequantized(weight((32, 3)) * np.float32(1e-41)), 0)
