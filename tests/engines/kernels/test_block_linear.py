"""Compare BlockLinear4 and 8 with their exact definition and with ONNX Runtime's MatMulNBits."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product as every
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from one_operator import available_instruction_sets, operator_session
from onnxruntime_products import matmul_nbits, session_of

from skipdec.engines.kernels.library import INSTRUCTION_SET_VARIABLE
from skipdec.exporter.quantization.packed import (
    PackedBlockQuantizer,
    PackedInt4Quantizer,
    PackedInt8BlockQuantizer,
)

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.skipif(
    not available_instruction_sets(), reason="the kernels were not compiled"
)

NONE, RELU, GELU = 0, 1, 2
QUANTIZERS = {4: PackedInt4Quantizer, 8: PackedInt8BlockQuantizer}
EVERY_BITS = pytest.mark.parametrize("bits", QUANTIZERS)


def fused_multiply_add(a: Array, b: Array, c: Array) -> Array:
    """Return float32(a · b + c), rounded once: float64 rounds to odd, so that float32 is right."""
    product, addend = a.astype(np.float64) * b, c.astype(np.float64)
    total = product + addend
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)
    is_even = total.view(np.int64) & 1 == 0
    towards = np.where(error > 0, np.inf, -np.inf)
    odd = np.where((error != 0) & is_even, np.nextafter(total, towards), total)
    return odd.astype(np.float32)


@dataclass(frozen=True)
class Layer:
    """A quantised layer: weight [K, N] in float32, optional bias [N]."""

    weight: Array
    block_size: int = 32
    bias: Array | None = None
    activation: int = NONE
    bits: int = 4

    @classmethod
    def random(
        cls,
        shape: tuple[int, int],
        block_size: int = 32,
        bias: bool = False,
        activation: int = 0,
        bits: int = 4,
    ) -> Layer:
        random = np.random.default_rng(shape)
        return cls(
            random.standard_normal(shape, np.float32) * np.float32(0.05),
            block_size,
            random.standard_normal(shape[1], np.float32) if bias else None,
            activation,
            bits,
        )

    @property
    def quantizer(self) -> PackedBlockQuantizer:
        return QUANTIZERS[self.bits](self.block_size)

    def rows(self, count: int, seed: int = 0) -> Array:
        random = np.random.default_rng(seed)
        return random.standard_normal((count, self.weight.shape[0]), np.float32)

    def session(
        self, residual: bool = False, threads: int = 1, **changed: Array | int
    ) -> onnxruntime.InferenceSession:
        tensors = self.quantizer.encode(self.weight)
        constants = {"weight": tensors["quantized"], "scale": tensors["scale"]}
        if self.bias is not None:
            constants["bias"] = self.bias
        bias = "bias" if self.bias is not None else ""
        operands = ["x", "weight", "scale", bias, "residual" if residual else ""]
        columns = self.weight.shape[1]
        attributes = {"block_size": self.block_size, "N": columns, "activation": self.activation}
        constants |= {name: value for name, value in changed.items() if name in constants}
        attributes |= {name: value for name, value in changed.items() if name in attributes}
        return operator_session(
            self.quantizer.operator, operands, constants, attributes, threads=threads
        )

    def run(self, x: Array, residual: Array | None = None) -> Array:
        feeds = {"x": x} if residual is None else {"x": x, "residual": residual}
        (y,) = self.session(residual is not None).run(None, feeds)
        return y

    def expected(self, x: Array, residual: Array | None = None) -> Array:
        """Compute the definition exactly, without GELU.

        Worked, one block of 32: x = (1, -0.5, 0, …) has scale 1/127 and codes (127, -64, 0, …), for
        -63.5 rounds to the even -64; the column (0.5, -1, 0, …) has scale 0.125 and codes
        (12, 0, 8, …). y = float32(127 · 4 + 64 · 8) · (0.125 · 1/127) = 1020 · 0.000984252.
        """
        tensors = self.quantizer.plain.encode(self.weight)
        packed, scale = tensors["quantized"], tensors["scale"].astype(np.float32)  # [N, blocks]
        columns, blocks = scale.shape
        codes = packed - 128.0
        if self.bits == 4:
            codes = np.stack((packed & 15, packed >> 4), -1).reshape(columns, blocks, -1) - 8.0
        padding = blocks * self.block_size - x.shape[-1]
        blocked = np.pad(x, ((0, 0), (0, padding))).reshape(len(x), blocks, -1)
        x_scale = np.abs(blocked).max(-1) / np.float32(127)  # [M, blocks]
        x_scale[x_scale < 2.0**-126] = 0
        inverse = np.divide(np.float32(1), x_scale, where=x_scale > 0, out=np.zeros_like(x_scale))
        x_codes = np.rint(blocked * inverse[..., None])
        y = np.zeros((len(x), columns), np.float32)
        for block in range(blocks):
            sums = x_codes[:, block] @ codes[:, block].T  # of integers, exact in float64
            both = scale[:, block] * x_scale[:, block, None]
            y = fused_multiply_add(sums.astype(np.float32), both, y)
        if self.bias is not None:
            y = y + self.bias
        if self.activation == RELU:
            y = np.maximum(y, np.float32(0))
        return y if residual is None else residual + y


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


SHAPES = [(128, 16), (65, 17), (768, 130), (1, 1)]


@EVERY_BITS
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 35])
@pytest.mark.parametrize(("block_size", "shape"), [(32, (320, 48)), *every((32, 64, 128), SHAPES)])
def test_any_rows_equal_the_definition(
    instruction_set: str, bits: int, block_size: int, shape: tuple[int, int], rows: int
) -> None:
    layer = Layer.random(shape, block_size, bits=bits)
    x = layer.rows(rows)
    np.testing.assert_array_equal(layer.run(x), layer.expected(x))


@EVERY_BITS
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("activation", [NONE, RELU])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 9, 40])
def test_every_form_equals_the_definition(
    instruction_set: str, bits: int, rows: int, bias: bool, activation: int, residual: bool
) -> None:
    layer = Layer.random((100, 70), 32, bias, activation, bits)
    x = layer.rows(rows)
    added = layer.expected(layer.rows(rows, seed=1)) if residual else None
    np.testing.assert_array_equal(layer.run(x, added), layer.expected(x, added))


@EVERY_BITS
def test_a_thousand_rows_on_two_threads(instruction_set: str, bits: int) -> None:
    layer = Layer.random((129, 200), bias=True, bits=bits)
    x = layer.rows(1000)
    (y,) = layer.session(threads=2).run(None, {"x": x.reshape(4, 250, 129)})
    np.testing.assert_array_equal(y.reshape(1000, 200), layer.expected(x))


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
    random = Layer.random(shape)
    layer = Layer(random.weight * of_weights, block_size, bits=bits)
    x = layer.rows(rows, seed=shape[0]) * of_rows
    with np.errstate(over="ignore", invalid="ignore"):
        expected = layer.expected(x)
    np.testing.assert_array_equal(layer.run(x), expected)


@EVERY_BITS
def test_a_row_does_not_depend_on_the_others(instruction_set: str, bits: int) -> None:
    layer = Layer.random((256, 48), activation=GELU, bits=bits)
    x = layer.rows(41)
    together, session = layer.run(x), layer.session()
    for row in range(41):
        alone = session.run(None, {"x": x[row : row + 1]})[0]
        np.testing.assert_array_equal(alone[0], together[row])


def test_gelu_has_the_same_bits_everywhere_and_is_torchs(
    instruction_set: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    layer = Layer.random((100, 70), bias=True, activation=GELU)
    x = layer.rows(50)
    y = layer.run(x)
    products = Layer(layer.weight, layer.block_size, layer.bias).expected(x)
    expected = torch.nn.functional.gelu(torch.from_numpy(products)).numpy()
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6)
    monkeypatch.setenv(INSTRUCTION_SET_VARIABLE, "portable")
    np.testing.assert_array_equal(layer.run(x), y)


@EVERY_BITS
def test_ties_round_to_even_and_what_has_no_reciprocal_counts_as_zero(
    instruction_set: str,
    bits: int,
) -> None:
    layer = Layer.random((256, 32), 128, bits=bits)
    ties = np.arange(-127.5, 128.5, 1, np.float32)
    ties[0], ties[-1] = -127, 127
    least = np.float32(2.0**-126)
    x = np.stack([ties, ties * least, ties * (least / 2), np.zeros_like(ties)])
    np.testing.assert_array_equal(layer.run(x), layer.expected(x))


@EVERY_BITS
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 63, 130])
def test_a_row_that_is_not_finite_stays_so_and_disturbs_no_other(
    instruction_set: str, bits: int, place: int, poison: float
) -> None:
    layer = Layer.random((131, 33), bias=True, activation=RELU, bits=bits)
    x = layer.rows(20)
    expected = layer.expected(x)
    x[5, place] = poison
    expected[5] = np.nan
    np.testing.assert_array_equal(layer.run(x), expected)


@EVERY_BITS
@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("block_size", [32, 128])
def test_is_close_to_matmulnbits_and_to_the_float_product(
    bits: int, block_size: int, rows: int
) -> None:
    layer = Layer.random((512, 96), block_size, bits=bits)
    tensors = layer.quantizer.plain.encode(layer.weight)
    product = matmul_nbits("y", tensors["quantized"], tensors["scale"], 512, bits)
    session = session_of([product], threads=1)
    x = layer.rows(rows)
    y, (of_onnxruntime,) = layer.run(x), session.run(None, {"x": x})
    by_floats = x @ layer.quantizer.dequantized(layer.weight)
    norm = np.linalg.norm
    assert norm(y - of_onnxruntime) < 0.01 * norm(by_floats)
    assert norm(y - by_floats) < 0.01 * norm(by_floats)


def test_the_result_may_lie_where_the_residual_lay(instruction_set: str) -> None:
    layer = Layer.random((96, 50))
    x, residual = layer.rows(10), layer.expected(layer.rows(10, seed=1))
    expected = layer.expected(x, residual)
    shared = onnxruntime.OrtValue.ortvalue_from_numpy(residual)
    session = layer.session(residual=True)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_ortvalue_input("residual", shared)
    binding.bind_ortvalue_output("y", shared)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(shared.numpy(), expected)


def test_sessions_of_several_threads_do_not_share_scratch(instruction_set: str) -> None:
    layers = [Layer.random((200 + 60 * i, 2048 + i)) for i in range(3)]
    sessions = [layer.session(threads=2) for layer in layers]

    def check(number: int) -> None:
        layer, session = layers[number % 3], sessions[number % 3]
        x = layer.rows(1 + number, seed=number)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], layer.expected(x))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(check, range(24)))


def test_no_rows_give_no_rows() -> None:
    assert Layer.random((64, 16)).run(np.empty((2, 0, 64), np.float32)).shape == (2, 0, 16)


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
    "activation": ({"activation": 4}, "activation must be 0"),
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
        Layer.random((128, 32), bits=8).session(**changed)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_weights_are_refused_when_the_session_is_made(name: str) -> None:
    changed, message = WRONG[name]
    with pytest.raises(Exception, match=re.escape(message)):
        Layer.random((128, 32), bias="bias" in changed).session(**changed)


def test_rows_that_do_not_fit_are_refused() -> None:
    layer = Layer.random((64, 16))
    for depth in (65, 32):
        with pytest.raises(Exception, match="x must be"):
            layer.run(np.zeros((1, depth), np.float32))
    with pytest.raises(Exception, match="residual must have the shape"):
        layer.run(layer.rows(2), np.zeros((1, 16), np.float32))


@EVERY_BITS
@pytest.mark.parametrize("block_size", [32, 64])
@pytest.mark.parametrize("shape", [(1, 1), (64, 16), (65, 17), (200, 50)])
def test_packing_is_undone(bits: int, shape: tuple[int, int], block_size: int) -> None:
    layer = Layer.random(shape, block_size, bits=bits)
    tensors = layer.quantizer.plain.encode(layer.weight)
    undone = layer.quantizer.unpacked(layer.quantizer.pack(layer.weight), shape)
    for name, original in tensors.items():
        np.testing.assert_array_equal(undone[name], original)
