"""BlockLinear4 and 8 alone: worked examples, MatMulNBits, wrong weights, packing."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from linear_layers import BlockLayer as Layer
from one_operator import available_instruction_sets
from onnxruntime_products import matmul_nbits, session_of

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.skipif(
    not available_instruction_sets(), reason="the kernels were not compiled"
)

EVERY_BITS = pytest.mark.parametrize("bits", [4, 8])


def test_worked_example(instruction_set: str) -> None:
    weight, x = np.zeros((32, 1), np.float32), np.zeros((1, 32), np.float32)
    weight[:2, 0], x[0, :2] = (0.5, -1), (1, -0.5)
    layer = Layer(weight)
    expected = np.float32(1020) * (np.float32(0.125) * (np.float32(1) / np.float32(127)))
    assert layer.run(x).tolist() == layer.expected(x).tolist() == [[expected]]


def test_worked_example_of_8_bits(instruction_set: str) -> None:
    """The column (0.5, -1, 0, …) has scale 1/128 and codes (64, -128, 0, …)."""
    weight, x = np.zeros((32, 1), np.float32), np.zeros((1, 32), np.float32)
    weight[:2, 0], x[0, :2] = (0.5, -1), (1, -0.5)
    layer = Layer(weight, bits=8)
    sums = np.float32(127 * 64 + 64 * 128)
    expected = sums * (np.float32(1 / 128) * (np.float32(1) / np.float32(127)))
    assert layer.run(x).tolist() == layer.expected(x).tolist() == [[expected]]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.tuples(st.integers(1, 700), st.integers(1, 150)),
    block_size=st.sampled_from([32, 64, 128]),
    bits=st.sampled_from([4, 8]),
    rows=st.integers(1, 70),
    exponents=st.tuples(st.integers(-38, 36), st.integers(-30, 30)),
)
def test_random_shapes_and_magnitudes(
    instruction_set: str,
    shape: tuple[int, int],
    block_size: int,
    bits: int,
    rows: int,
    exponents: tuple[int, int],
) -> None:
    of_rows, of_weights = (np.float32(10.0**exponent) for exponent in exponents)
    random = Layer.random(*shape)
    layer = Layer(random.weight * of_weights, block_size=block_size, bits=bits)
    x = layer.rows(rows, seed=shape[0]) * of_rows
    with np.errstate(over="ignore", invalid="ignore"):
        expected = layer.expected(x)
    np.testing.assert_array_equal(layer.run(x), expected)


@EVERY_BITS
def test_ties_round_to_even_and_what_has_no_reciprocal_counts_as_zero(
    instruction_set: str,
    bits: int,
) -> None:
    layer = Layer.random(256, 32, block_size=128, bits=bits)
    ties = np.arange(-127.5, 128.5, 1, np.float32)
    ties[0], ties[-1] = -127, 127
    least = np.float32(2.0**-126)
    x = np.stack([ties, ties * least, ties * (least / 2), np.zeros_like(ties)])
    np.testing.assert_array_equal(layer.run(x), layer.expected(x))


@EVERY_BITS
@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("block_size", [32, 128])
def test_is_close_to_matmulnbits_and_to_the_float_product(
    bits: int, block_size: int, rows: int
) -> None:
    layer = Layer.random(512, 96, block_size=block_size, bits=bits)
    tensors = layer.quantizer.plain.encode(layer.weight)
    product = matmul_nbits("y", tensors["quantized"], tensors["scale"], 512, bits)
    session = session_of([product], threads=1)
    x = layer.rows(rows)
    y, (of_onnxruntime,) = layer.run(x), session.run(None, {"x": x})
    by_floats = x @ layer.quantizer.dequantized(layer.weight)
    norm = np.linalg.norm
    assert norm(y - of_onnxruntime) < 0.01 * norm(by_floats)
    assert norm(y - by_floats) < 0.01 * norm(by_floats)


WRONG: dict[str, tuple[dict[str, Array | int], str]] = {
    "block size": ({"block_size": 16}, "block_size must be 32, 64 or 128"),
    "another block size": ({"block_size": 64}, "scale must be packed"),
    "no columns": ({"N": 0}, "N must be the number of columns"),
    "too many columns": ({"N": 33}, "weight must be packed"),
    "too few columns": ({"N": 24}, "must be those of 0 beyond column N"),
    "of MatMulNBits": ({"weight": np.zeros((32, 4, 16), np.uint8)}, "weight must be packed"),
    "panels": ({"weight": np.zeros((3, 16, 16, 4), np.uint8)}, "weight must be packed"),
    "depth": ({"weight": np.zeros((2, 8, 16, 4), np.uint8)}, "scale must be packed"),
    "scale": ({"scale": np.ones((32, 4), ml_dtypes.bfloat16)}, "scale must be packed"),
    "bias": ({"bias": np.zeros(33, np.float32)}, "bias must be [N]"),
}


WRONG_OF_8_BITS: dict[str, tuple[dict[str, Array | int], str]] = {
    "too few columns": ({"N": 24}, "must be those of 0 beyond column N"),
    "of 4 bits": ({"weight": np.zeros((2, 16, 16, 4), np.int8)}, "scale must be packed"),
    "another block size": ({"block_size": 64}, "scale must be packed"),
    "panels": (
        {"weight": np.zeros((3, 32, 16, 4), np.int8)},
        "weight must be packed: [N / 16, K / 4",
    ),
}


@pytest.mark.parametrize("name", WRONG_OF_8_BITS)
def test_wrong_weights_of_8_bits_are_refused(name: str) -> None:
    changed, message = WRONG_OF_8_BITS[name]
    with pytest.raises(Exception, match=re.escape(message)):
        Layer.random(128, 32, bits=8).session(**changed)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_weights_are_refused_when_the_session_is_made(name: str) -> None:
    changed, message = WRONG[name]
    with pytest.raises(Exception, match=re.escape(message)):
        Layer.random(128, 32, bias="bias" in changed).session(**changed)


@EVERY_BITS
@pytest.mark.parametrize("block_size", [32, 64])
@pytest.mark.parametrize("shape", [(1, 1), (64, 16), (65, 17), (200, 50)])
def test_packing_is_undone(bits: int, shape: tuple[int, int], block_size: int) -> None:
    layer = Layer.random(*shape, block_size=block_size, bits=bits)
    tensors = layer.quantizer.plain.encode(layer.weight)
    undone = layer.quantizer.unpacked(layer.quantizer.pack(layer.weight), shape)
    for name, original in tensors.items():
        np.testing.assert_array_equal(undone[name], original)
