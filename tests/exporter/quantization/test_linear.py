"""Test weights for DequantizeLinear: codes, scales in the engine's float type, bytes."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from skipdec.engines.errors import CheckpointError
from skipdec.engines.manifest import EngineKind, FloatType, PrecisionSpec
from skipdec.exporter.building.engine import WeightsFile
from skipdec.exporter.quantization.linear import (
    Float8Quantizer,
    LinearBlockQuantizer,
    LinearChannelQuantizer,
)
from skipdec.exporter.quantization.quantize import WeightQuantizer, quantizer_of

DTYPES: tuple[FloatType, ...] = ("float32", "float16", "bfloat16")


def weight(in_size: int = 32, out_size: int = 9, scale: float = 0.2) -> np.ndarray:
    values = np.random.default_rng(0).standard_normal((in_size, out_size), np.float32)
    return values * np.float32(scale)


def quantizers(dtype: FloatType) -> list[WeightQuantizer]:
    blocks = [LinearBlockQuantizer(bits, 16, dtype) for bits in (4, 8)]
    return [LinearChannelQuantizer(dtype), *blocks, Float8Quantizer(dtype)]


def test_codes_and_scales_equal_the_worked_examples() -> None:
    channel = LinearChannelQuantizer("float32").encode(np.array([[-1.0], [0.5], [0.3]]))
    assert channel["quantized"].T.tolist() == [[-127, 64, 38]]
    block = LinearBlockQuantizer(4, 3, "float32").encode(np.array([[0.4], [-1.0], [0.25]]))
    assert block["quantized"].astype(int).T.tolist() == [[3, -7, 2]]
    np.testing.assert_allclose(block["scale"], [[1 / 7]], rtol=1e-6)
    float8 = Float8Quantizer("float32").encode(np.array([[4.48, -2.24]]))
    assert float8["quantized"].astype(float).tolist() == [[448.0, -224.0]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts_round_trip_within_half_a_step(dtype: FloatType) -> None:
    original = weight()
    for quantizer in quantizers(dtype):
        tensors = quantizer.encode(original.astype(np.float16))
        layout = {name: (str(array.dtype), array.shape) for name, array in tensors.items()}
        assert layout == quantizer.layout((32, 9))
        scale = tensors["scale"].astype(np.float32)
        steps = np.repeat(scale, 16, axis=0) if scale.ndim == 2 else scale
        if isinstance(quantizer, Float8Quantizer):
            steps = np.abs(original) / 8 + scale  # 3 bits of mantissa
        error = np.abs(quantizer.decode(tensors, original.shape) - original)
        # The largest value may be clipped by as much as its scale was rounded down.
        clipped = np.abs(original) * 2.0 ** -(8 if dtype == "bfloat16" else 11)
        assert (error <= steps / 2 + clipped + 1e-4).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_columns_of_zeros_and_tiny_values_stay_finite(dtype: FloatType) -> None:
    original = weight()
    original[:, 2], original[:, 3] = 0, 1e-9
    for quantizer in quantizers(dtype):
        decoded = quantizer.dequantized(original)
        assert np.isfinite(decoded).all()
        np.testing.assert_allclose(decoded[:, 2:4], 0, atol=1e-8)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e8])  # its scale is infinite in float16
def test_non_finite_weights_are_refused(value: float) -> None:
    original = weight()
    original[5, 3] = value
    for quantizer in quantizers("float16"):
        with pytest.raises(CheckpointError, match="NaN or infinity"):
            quantizer.encode(original)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(32, 9), (16, 1), (48, 20)])
def test_onnx_reads_the_stored_values(
    shape: tuple[int, int], dtype: FloatType, tmp_path: Path
) -> None:
    for quantizer in quantizers(dtype):
        for name, array in quantizer.encode(weight(*shape)).items():
            with WeightsFile(tmp_path / "weights") as weights:
                offset, length = weights.append(array, array.dtype)
            element_type = ir.DataType.from_numpy(array.dtype)
            assert length == (array.size * element_type.bitwidth + 7) // 8
            stored = ir.ExternalTensor(
                "weights",
                offset,
                length,
                element_type,
                shape=ir.Shape(array.shape),
                name=name,
                base_dir=tmp_path,
            )
            np.testing.assert_array_equal(stored.numpy(), array)


def test_an_odd_number_of_int4_values_ends_in_half_a_byte(tmp_path: Path) -> None:
    codes = np.array([[1, -2, 7]], ml_dtypes.int4)
    with WeightsFile(tmp_path / "weights") as weights:
        weights.append(codes, codes.dtype)
    assert (tmp_path / "weights").read_bytes() == bytes([0xE1, 0x07])


def test_each_target_has_its_own_quantiser() -> None:
    precision = PrecisionSpec(dtype="float16", quantize="int4", block_size=32)
    for target in ("tensorrt", "tensorrt-rtx"):
        made = quantizer_of(target, EngineKind.LAYER, precision)
        assert made == LinearBlockQuantizer(4, 32, "float16")
        assert quantizer_of(target, EngineKind.HEAD, precision) is None
    assert quantizer_of("onnxruntime", EngineKind.LAYER, precision) != made
