"""Test what differs between linear operators: magnitudes, ONNX Runtime's nodes, packing."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from linear_layers import (
    DTYPES,
    FORMS,
    NONE,
    RELU,
    BlockLayer,
    FloatLayer,
    random_layer,
)
from one_operator import available_instruction_sets
from onnx import numpy_helper

from skipdec.engines.backends.ort import session_options
from skipdec.engines.kernels.packing import pack_float, pack_int8, unpack_float, unpack_int8

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.skipif(
    not available_instruction_sets(), reason="the kernels were not compiled"
)

INTEGER_CHAIN = """
    magnitudes = Abs(x)
    peak = ReduceMax<keepdims = 1>(magnitudes, axis)
    row_scale = Div(peak, maximum)
    shape = Shape(row_scale)
    zeros = ConstantOfShape<value = uint8[1] {128}>(shape)
    quantised = QuantizeLinear<axis = -1, block_size = DEPTH>(x, row_scale, zeros)
    sums = MatMulInteger(quantised, codes, zero_point)
    floats = Cast<to = 1>(sums)
    scaled = Mul(floats, scale)
    product = Mul(scaled, row_scale)
    biased = Add(product, bias)
    y = Relu(biased)"""
EXACT = [form for form in FORMS if form not in DTYPES]
EVERY_BITS = pytest.mark.parametrize("bits", [4, 8])


@pytest.mark.parametrize(
    ("bits", "sums", "scale"), [(4, 127 * 4 + 64 * 8, 1 / 8), (8, 127 * 64 + 64 * 128, 1 / 128)]
)
def test_block_products_equal_the_worked_examples(
    instruction_set: str, bits: int, sums: int, scale: float
) -> None:
    """With 8 bits, the column (0.5, -1, 0, …) has scale 1/128 and codes (64, -128, 0, …)."""
    weight, x = np.zeros((32, 1), np.float32), np.zeros((1, 32), np.float32)
    weight[:2, 0], x[0, :2] = (0.5, -1), (1, -0.5)
    layer = BlockLayer(weight, bits=bits)
    expected = np.float32(sums) * (np.float32(scale) * (np.float32(1) / np.float32(127)))
    assert layer.run(x).tolist() == layer.expected(x).tolist() == [[expected]]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    form=st.sampled_from(EXACT),
    shape=st.tuples(st.integers(1, 700), st.integers(1, 150)),
    rows=st.integers(1, 70),
    exponents=st.tuples(st.integers(-38, 36), st.integers(-30, 30)),
    parts=st.tuples(st.booleans(), st.sampled_from([NONE, RELU]), st.booleans()),
)
def test_products_are_exact_at_random_shapes_and_magnitudes(
    instruction_set: str,
    form: str,
    shape: tuple[int, int],
    rows: int,
    exponents: tuple[int, int],
    parts: tuple[bool, int, bool],
) -> None:
    of_rows, of_weights = (np.float32(10.0**exponent) for exponent in exponents)
    bias, activation, residual = parts
    layer = random_layer(form, *shape, bias, activation)
    if isinstance(layer, BlockLayer):
        layer = replace(layer, weight=layer.weight * of_weights)
    x, added = layer.rows(rows, seed=shape[0]) * of_rows, layer.residual(rows) if residual else None
    with np.errstate(over="ignore", invalid="ignore"):
        expected = layer.expected(x, added)
    np.testing.assert_array_equal(layer.run(x, added), expected)


@EVERY_BITS
def test_block_ties_round_to_even_and_subnormal_blocks_are_zero(
    instruction_set: str, bits: int
) -> None:
    layer = random_layer(f"int{bits}-128", 256, 32)
    ties = np.arange(-127.5, 128.5, 1, np.float32)
    ties[0], ties[-1] = -127, 127
    least = np.float32(2.0**-126)
    x = np.stack([ties, ties * least, ties * (least / 2), np.zeros_like(ties)])
    np.testing.assert_array_equal(layer.run(x), layer.expected(x))


def test_column_ties_round_to_even_and_subnormals_saturate(instruction_set: str) -> None:
    layer = random_layer("int8", 256, 32)
    ties = np.arange(-127.5, 128.5, 1, np.float32)
    ties[0], ties[-1] = -127, 127
    tiny = np.float32(2.0**-149)
    saturating = np.rint(1.5 * ties) * tiny  # the scale, 1.5 * tiny, is rounded to tiny
    subnormal = [ties * scale for scale in np.float32([2.0**-149, 1e-43, 2.0**-133])]
    x = np.stack([ties, *subnormal, saturating, saturating * 3])
    np.testing.assert_array_equal(layer.run(x), layer.expected(x))


def test_a_row_of_zeros_gives_the_bias_and_changes_no_other(instruction_set: str) -> None:
    layer = random_layer("int8", 192, 33, bias=True)
    x = layer.rows(20)
    x[[0, 7, 19]] = 0
    np.testing.assert_array_equal(layer.run(x), layer.expected(x))


def test_subnormal_and_non_finite_weights_are_used_unchanged(instruction_set: str) -> None:
    weight = np.array([[2.0**-24, np.inf, np.nan, 65504, -0.0]], np.float16)
    y = FloatLayer(weight).run(np.float32([[2.0], [-1.0]]))
    expected = np.float32([[2.0], [-1.0]]) * weight.astype(np.float32)
    np.testing.assert_array_equal(y, expected)


def onnxruntimes(body: str, constants: dict[str, Array], x: Array) -> Array:
    """Return y of x [M, K] by ONNX Runtime's operators, as exports write them."""
    text = f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        parts (float[M, K] x) => (float[M, N] y) {{ {body} }}"""
    model = onnx.parser.parse_model(text)
    tensors = (numpy_helper.from_array(array, name) for name, array in constants.items())
    model.graph.initializer.extend(tensors)
    options = session_options(1)
    options.add_session_config_entry("session.x64quantprecision", "1")  # exact without VNNI
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
    y: Array = session.run(None, {"x": x})[0]
    return y


def test_columns_equal_the_nodes_of_onnx_runtime(instruction_set: str) -> None:
    layer = random_layer("int8", 333, 100, bias=True, activation=RELU)
    x = layer.rows(37)
    constants: dict[str, Array] = {"codes": layer.weight, "scale": layer.scale, "bias": layer.bias}
    constants |= {"axis": np.array([-1]), "maximum": np.array(127, np.float32)}
    constants["zero_point"] = np.array(128, np.uint8)
    body = INTEGER_CHAIN.replace("DEPTH", "333")
    np.testing.assert_array_equal(layer.run(x), onnxruntimes(body, constants, x))


@EVERY_BITS
@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("block_size", [32, 128])
def test_blocks_are_close_to_matmulnbits_and_to_the_float_product(
    bits: int, block_size: int, rows: int
) -> None:
    layer = random_layer(f"int{bits}-{block_size}", 512, 96)
    tensors = layer.quantizer.plain.encode(layer.weight)
    constants = {"codes": tensors["quantized"], "scale": tensors["scale"].astype(np.float32)}
    attributes = f"K = 512, N = 96, bits = {bits}, block_size = {block_size}, accuracy_level = 4"
    x = layer.rows(rows)
    body = f"y = com.microsoft.MatMulNBits<{attributes}>(x, codes, scale)"
    y, of_onnxruntime = layer.run(x), onnxruntimes(body, constants, x)
    by_floats = x @ layer.quantizer.dequantized(layer.weight)
    norm = np.linalg.norm
    assert norm(y - of_onnxruntime) < 0.01 * norm(by_floats)
    assert norm(y - by_floats) < 0.01 * norm(by_floats)


COLUMNS = random_layer("int8", 64, 32, bias=True)
BLOCKS, BYTES = random_layer("int4-32", 128, 32, bias=True), random_layer("int8-32", 128, 32)
FLOATS = random_layer("float16", 8, 32, bias=True)
WRONG: list[tuple[Any, dict[str, Array | int], str]] = [
    (COLUMNS, {"weight": np.zeros((64, 32), np.int8)}, "weight must be packed"),
    (COLUMNS, {"weight": np.zeros((2, 8, 16, 4), np.int8)}, "weight must be packed"),
    (COLUMNS, {"weight": np.zeros((3, 16, 16, 4), np.int8)}, "scale must be [N]"),
    (COLUMNS, {"scale": np.ones(16, np.float32)}, "scale must be [N]"),
    (COLUMNS, {"offset": np.zeros(31, np.int32)}, "offset must have as many"),
    (COLUMNS, {"offset": np.full(32, 128, np.int32)}, "weight and offset disagree"),
    (COLUMNS, {"bias": np.zeros(33, np.float32)}, "bias must be [N]"),
    (BLOCKS, {"block_size": 16}, "block_size must be 32, 64 or 128"),
    (BLOCKS, {"block_size": 64}, "scale must be packed"),
    (BLOCKS, {"N": 0}, "N must be the number of columns"),
    (BLOCKS, {"N": 33}, "weight must be packed"),
    (BLOCKS, {"N": 24, "bias": np.zeros(24, np.float32)}, "must be those of 0 beyond column N"),
    (BLOCKS, {"weight": np.zeros((32, 4, 16), np.uint8)}, "weight must be packed"),
    (BLOCKS, {"weight": np.zeros((3, 16, 16, 4), np.uint8)}, "weight must be packed"),
    (BLOCKS, {"weight": np.zeros((2, 8, 16, 4), np.uint8)}, "scale must be packed"),
    (BLOCKS, {"scale": np.ones((32, 4), ml_dtypes.bfloat16)}, "scale must be packed"),
    (BLOCKS, {"bias": np.zeros(33, np.float32)}, "bias must be [N]"),
    (BYTES, {"N": 24}, "must be those of 0 beyond column N"),
    (BYTES, {"weight": np.zeros((2, 16, 16, 4), np.int8)}, "scale must be packed"),
    (BYTES, {"block_size": 64}, "scale must be packed"),
    (BYTES, {"weight": np.zeros((3, 32, 16, 4), np.int8)}, "weight must be packed: [N / 16, K / 4"),
    (FLOATS, {"weight": np.zeros((8, 32), np.float16)}, "weight must be packed"),
    (FLOATS, {"weight": np.zeros((3, 8, 16), np.float16)}, "weight must be packed"),
    (FLOATS, {"weight": np.zeros((2, 8, 16), np.float64)}, "weight must be float32, float16"),
    (FLOATS, {"bias": np.zeros(33, np.float32)}, "bias must be [N]"),
    (FLOATS, {"N": 0}, "N must be"),
]


@pytest.mark.parametrize(("layer", "changed", "message"), WRONG)
def test_wrong_nodes_are_refused_when_the_session_opens(
    layer: Any,  # noqa: ANN401
    changed: dict[str, Array | int],
    message: str,
) -> None:
    with pytest.raises(Exception, match=re.escape(message)):
        layer.session(**changed)


def test_another_packing_is_refused_when_the_session_opens() -> None:
    layer = random_layer("int8", 128, 32)
    weight, _ = pack_int8(layer.weight)
    with pytest.raises(Exception, match="weight and offset disagree"):
        layer.session(weight=np.ascontiguousarray(weight.swapaxes(0, 1)).reshape(weight.shape))


@pytest.mark.parametrize("shape", [(1, 1), (8, 16), (64, 16), (65, 17), (200, 50)])
def test_unpacking_inverts_packing(shape: tuple[int, int]) -> None:
    codes = random_layer("int8", *shape).weight
    weight, offset = pack_int8(codes)
    np.testing.assert_array_equal(unpack_int8(weight, shape), codes)
    np.testing.assert_array_equal(offset, 128 * codes.sum(axis=0, dtype=np.int32))
    for dtype in DTYPES:
        floats = random_layer(dtype, *shape).weight
        np.testing.assert_array_equal(unpack_float(pack_float(floats), shape[1]), floats)
    for form in EXACT[1:]:
        layer = random_layer(form, *shape)
        undone = layer.quantizer.unpacked(layer.quantizer.pack(layer.weight), shape)
        for name, original in layer.quantizer.plain.encode(layer.weight).items():
            np.testing.assert_array_equal(undone[name], original)
