"""Quantised weights have the right values, and quantised products are exact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from built_engines import RandomReader, Session, build, causal_mask, module, tiny_spec
from numpy.typing import NDArray

from skipdec.engines.errors import CheckpointError
from skipdec.engines.manifest import EngineKind, ModelSpec, PrecisionSpec
from skipdec.exporter.architecture.architecture import quantized_parameters
from skipdec.exporter.quantization import quantize
from skipdec.exporter.quantization.quantize import (
    BlockQuantizer,
    ChannelQuantizer,
    WeightQuantizer,
    weight_quantizer,
)

FloatArray = NDArray[np.float32]
INT8 = PrecisionSpec(quantize="int8", head_quantize="int8")


def weight(in_size: int, out_size: int) -> FloatArray:
    return np.random.default_rng(0).standard_normal((in_size, out_size), np.float32)


def test_a_channel_equals_the_worked_example() -> None:
    tensors = ChannelQuantizer().encode(np.array([[-1.0], [0.5], [0.3]]))
    assert tensors["quantized"].ravel().tolist() == [-127, 64, 38]
    assert tensors["scale"].tolist() == [np.float32(1) / np.float32(127)]


def test_a_block_equals_the_worked_example() -> None:
    column = np.zeros((16, 1), np.float32)
    column[:3, 0] = (0.5, -1.0, 0.25)
    tensors = BlockQuantizer(4, 16).encode(column)
    assert tensors["quantized"].ravel().tolist() == [12 | 0 << 4, 10 | 8 << 4, *[0x88] * 6]
    assert tensors["scale"].ravel().tolist() == [0.125]


@pytest.mark.parametrize(
    ("quantizer", "steps"),
    [
        (ChannelQuantizer(), 127),
        (BlockQuantizer(8, 32), 128),
        (BlockQuantizer(4, 32), 8),
    ],
)
def test_an_error_is_at_most_half_a_step(quantizer: WeightQuantizer, steps: int) -> None:
    original = weight(80, 24)  # 80 is not a multiple of the block size
    # The largest positive value of a block can't be represented if a negative one ties with it;
    # clipping costs one step, not half.
    error = np.abs(quantizer.dequantized(original) - original)
    bound = np.abs(original).max(axis=0) / steps
    assert (error <= bound * 1.001).all()
    assert np.mean(error <= bound * 0.501) > 0.99


EACH = pytest.mark.parametrize("quantizer", [ChannelQuantizer(), BlockQuantizer(4, 16)])


@EACH
def test_encode_produces_the_documented_layout(quantizer: WeightQuantizer) -> None:
    made = quantizer.encode(weight(40, 9).astype(np.float16))
    assert quantizer.layout((40, 9)) == {
        name: (str(tensor.dtype), tensor.shape) for name, tensor in made.items()
    }


@EACH
def test_columns_are_quantised_independently(
    quantizer: WeightQuantizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = quantizer.encode(weight(48, 20))
    monkeypatch.setattr(quantize, "_BLOCK_ELEMENTS", 48 * 3)
    for name, tensor in quantizer.encode(weight(48, 20)).items():
        np.testing.assert_array_equal(tensor, whole[name])


@EACH
def test_a_column_of_zeros_is_decoded_as_zeros(quantizer: WeightQuantizer) -> None:
    original = weight(32, 3)
    original[:, 1] = 0
    np.testing.assert_array_equal(quantizer.dequantized(original)[:, 1], 0)


@EACH
@pytest.mark.parametrize("peak", [1e-44, 2.6e-43, 1e-37])
def test_a_column_of_subnormal_weights_stays_near_zero(
    quantizer: WeightQuantizer, peak: float
) -> None:
    original = weight(32, 3)
    original[:, 1] *= np.float32(peak) / np.abs(original[:, 1]).max()
    with np.errstate(divide="raise", invalid="raise"):
        error = np.abs(quantizer.dequantized(original) - original)[:, 1]
    assert error.max() <= np.abs(original[:, 1]).max()


@EACH
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_weights_are_refused(quantizer: WeightQuantizer, bad: float) -> None:
    original = weight(32, 3)
    original[5, 1] = bad
    with pytest.raises(CheckpointError, match="NaN or infinity"):
        quantizer.encode(original)


def integer_product(inputs: FloatArray, tensors: dict[str, np.ndarray]) -> FloatArray:
    """Compute the int8 product from its definition."""
    row_scale = np.abs(inputs).max(axis=-1, keepdims=True) / np.float32(127)
    with np.errstate(invalid="ignore"):
        codes = np.nan_to_num(np.rint(inputs / row_scale))
    sums = codes.astype(np.int64) @ tensors["quantized"].astype(np.int64)
    return sums.astype(np.float32) * tensors["scale"] * row_scale


def head_weight(model: ModelSpec) -> FloatArray:
    return RandomReader(model).read("decoder.embed_tokens.weight").T


def sums_are_exact() -> bool:
    """Return whether ONNX Runtime adds products of 8-bit integers in 32 bits on this processor.

    AVX2 adds pairs of products in 16 bits, which saturates.
    """
    flags = Path("/proc/cpuinfo")
    return not flags.exists() or any(name in flags.read_text() for name in ("vnni", "asimddp"))


@pytest.mark.skipif(not sums_are_exact(), reason="ONNX Runtime's sums saturate without VNNI")
def test_an_int8_head_equals_the_integer_product(tmp_path: Path) -> None:
    model = tiny_spec(final_layer_norm=False)
    session = Session(tmp_path, build(EngineKind.HEAD, model, tmp_path, INT8))
    hidden = np.random.default_rng(1).standard_normal((2, 4, 32), np.float32)
    hidden[1, 2] = 0
    logits = session.run({"hidden_states": hidden, "row_positions": np.arange(8)})["logits"]
    expected = integer_product(hidden.reshape(8, 32), ChannelQuantizer().encode(head_weight(model)))
    np.testing.assert_allclose(logits, expected, rtol=3e-7, atol=0)
    np.testing.assert_array_equal(logits[6], 0)


def test_an_int8_layer_gives_equal_bits_alone_and_in_a_batch(tmp_path: Path) -> None:
    model, rng = tiny_spec(hidden_size=64, ffn_dim=256), np.random.default_rng(2)
    session = Session(tmp_path, build(EngineKind.LAYER, model, tmp_path, INT8))
    cache = (8, model.num_heads, 6, model.head_dim)
    magnitudes = np.logspace(-3, 4, 8, dtype=np.float32)[:, None, None]
    arrays = [
        rng.standard_normal((8, 1, 64), np.float32) * magnitudes,
        rng.standard_normal(cache, np.float32),
        rng.standard_normal(cache, np.float32),
    ]
    lengths = np.arange(1, 7)[[0, 5, 2, 1, 4, 3, 5, 0]]
    batch = [array.copy() for array in arrays]
    session.run_layer_in_place(*batch, lengths)
    for row in range(8):
        alone = [array[row : row + 1].copy() for array in arrays]
        session.run_layer_in_place(*alone, lengths[row : row + 1])
        for one, all_rows in zip(alone, batch, strict=True):
            np.testing.assert_array_equal(one[0], all_rows[row])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("quantization", ["int8-block", "int4"])
@pytest.mark.parametrize(("accuracy_level", "tolerance"), [(0, 1e-5), (4, 0.03)])
def test_block_products_equal_products_of_dequantised_weights(
    quantization: str, accuracy_level: int, tolerance: float, dtype: str, tmp_path: Path
) -> None:
    blocks = {"block_size": 32, "accuracy_level": accuracy_level}
    precision = PrecisionSpec(dtype=dtype, quantize=quantization, **blocks)
    model, rng = tiny_spec(), np.random.default_rng(3)
    session = Session(tmp_path, build(EngineKind.LAYER, model, tmp_path, precision))
    reference = module(EngineKind.LAYER, model)
    quantizer = weight_quantizer(EngineKind.LAYER, precision)
    assert quantizer is not None
    for name in quantized_parameters(EngineKind.LAYER, model):
        parameter = reference.get_parameter(name)
        dequantized = np.ascontiguousarray(quantizer.dequantized(parameter.numpy()))
        parameter.data = torch.from_numpy(dequantized)
    hidden = rng.standard_normal((1, 4, 32)).astype(dtype)
    cache = np.zeros((1, model.num_heads, 4, model.head_dim), dtype)
    mask = torch.from_numpy(causal_mask(np.array([0]), 4, 4))
    zeros = torch.zeros(cache.shape)
    inputs = torch.from_numpy(hidden.astype(np.float32))
    expected = reference(inputs, zeros, zeros, torch.tensor([0]), mask)[0].numpy()
    session.run_layer_in_place(hidden, cache, cache.copy(), np.array([4]))
    bound = max(tolerance, 5e-3 if dtype == "float16" else 0) * np.abs(expected).max()
    np.testing.assert_allclose(hidden, expected, atol=bound, rtol=0)
