"""Compare QuantizedLinear with the product of integers and with ONNX Runtime's own nodes."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from one_operator import available_instruction_sets, operator_session
from onnxruntime_products import integer_chain, session_of

from skipdec.engines.kernels.packing import pack_int8, unpack_int8

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.skipif(
    not available_instruction_sets(), reason="the kernels were not compiled"
)

NONE, RELU, GELU = 0, 1, 2


@dataclass(frozen=True)
class Layer:
    """A quantised layer: codes [K, N], scale [N], optional bias [N]."""

    codes: Array
    scale: Array
    bias: Array | None = None
    activation: int = NONE

    @classmethod
    def random(cls, depth: int, columns: int, bias: bool = False, activation: int = NONE) -> Layer:
        random = np.random.default_rng(depth * 1000 + columns)
        return cls(
            random.integers(-128, 128, (depth, columns), np.int8),
            random.uniform(0.001, 0.01, columns).astype(np.float32),
            random.standard_normal(columns).astype(np.float32) if bias else None,
            activation,
        )

    def rows(self, count: int, seed: int = 0) -> Array:
        random = np.random.default_rng(seed)
        return random.standard_normal((count, self.codes.shape[0])).astype(np.float32)

    def session(
        self, residual: bool = False, threads: int = 1, **changed: Array
    ) -> onnxruntime.InferenceSession:
        weight, offset = pack_int8(self.codes)
        constants = {"weight": weight, "scale": self.scale, "offset": offset}
        if self.bias is not None:
            constants["bias"] = self.bias
        bias = "bias" if self.bias is not None else ""
        operands = ["x", "weight", "scale", "offset", bias, "residual" if residual else ""]
        attributes = {"activation": self.activation}
        constants |= changed
        return operator_session("QuantizedLinear", operands, constants, attributes, threads=threads)

    def run(self, x: Array, residual: Array | None = None) -> Array:
        feeds = {"x": x} if residual is None else {"x": x, "residual": residual}
        (y,) = self.session(residual is not None).run(None, feeds)
        return y

    def expected(self, x: Array, residual: Array | None = None) -> Array:
        """Compute in numpy, whose sums of integers and roundings are exact; without GELU."""
        row_scale = np.abs(x).max(-1, keepdims=True) / np.float32(127)
        with np.errstate(divide="ignore", invalid="ignore"):
            codes = np.nan_to_num(np.clip(np.rint(x / row_scale), -128, 127)).astype(np.int64)
        y = (codes @ self.codes.astype(np.int64)).astype(np.float32) * self.scale * row_scale
        if self.bias is not None:
            y = y + self.bias
        if self.activation == RELU:
            y = np.maximum(y, np.float32(0))
        return y if residual is None else residual + y


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 17, 31, 33, 64, 100])
@pytest.mark.parametrize("shape", [(64, 16), (65, 17), (768, 130), (1, 1), (320, 48)])
def test_any_rows_equal_the_integer_product(
    instruction_set: str, shape: tuple[int, int], rows: int
) -> None:
    layer = Layer.random(*shape)
    x = layer.rows(rows)
    np.testing.assert_array_equal(layer.run(x), layer.expected(x))


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("activation", [NONE, RELU])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 9, 40])
def test_every_form_equals_the_integer_product(
    instruction_set: str, rows: int, bias: bool, activation: int, residual: bool
) -> None:
    layer = Layer.random(100, 70, bias, activation)
    x = layer.rows(rows)
    added = layer.expected(layer.rows(rows, seed=1)) if residual else None
    np.testing.assert_array_equal(layer.run(x, added), layer.expected(x, added))


def test_a_thousand_rows_on_two_threads(instruction_set: str) -> None:
    layer = Layer.random(129, 200, bias=True)
    x = layer.rows(1000).reshape(4, 250, 129)
    (y,) = layer.session(threads=2).run(None, {"x": x})
    np.testing.assert_array_equal(y, layer.expected(x))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    depth=st.integers(1, 700),
    columns=st.integers(1, 150),
    rows=st.integers(1, 70),
    exponent=st.integers(-38, 36),
    form=st.tuples(st.booleans(), st.sampled_from([NONE, RELU]), st.booleans()),
)
def test_random_shapes_and_magnitudes(
    instruction_set: str,
    depth: int,
    columns: int,
    rows: int,
    exponent: int,
    form: tuple[bool, int, bool],
) -> None:
    bias, activation, residual = form
    layer = Layer.random(depth, columns, bias, activation)
    x = layer.rows(rows, seed=depth) * np.float32(10.0**exponent)
    added = layer.expected(layer.rows(rows, seed=1)) if residual else None
    np.testing.assert_array_equal(layer.run(x, added), layer.expected(x, added))


def test_ties_round_to_even_and_subnormals_saturate(instruction_set: str) -> None:
    layer = Layer.random(256, 32)
    ties = np.arange(-127.5, 128.5, 1, np.float32)
    ties[0], ties[-1] = -127, 127
    tiny = np.float32(2.0**-149)
    saturating = np.rint(1.5 * ties) * tiny  # the scale, 1.5 * tiny, is rounded to tiny
    subnormal = [ties * scale for scale in np.float32([2.0**-149, 1e-43, 2.0**-133])]
    x = np.stack([ties, *subnormal, saturating, saturating * 3])
    np.testing.assert_array_equal(layer.run(x), layer.expected(x))


def test_a_row_of_zeros_is_the_bias_and_disturbs_no_other(instruction_set: str) -> None:
    layer = Layer.random(192, 33, bias=True)
    x = layer.rows(20)
    x[[0, 7, 19]] = 0
    np.testing.assert_array_equal(layer.run(x), layer.expected(x))


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 63, 130])
def test_a_row_that_is_not_finite_stays_so_and_disturbs_no_other(
    instruction_set: str, place: int, poison: float
) -> None:
    layer = Layer.random(131, 33, bias=True, activation=RELU)
    x = layer.rows(20)
    expected = layer.expected(x)
    x[5, place] = poison
    expected[5] = np.nan
    np.testing.assert_array_equal(layer.run(x), expected)


def test_equals_the_nodes_of_onnx_runtime(instruction_set: str) -> None:
    layer = Layer.random(333, 100, bias=True, activation=RELU)
    x = layer.rows(37)
    chain = session_of([integer_chain("chain", layer.codes, layer.scale, layer.bias, relu=True)])
    np.testing.assert_array_equal(layer.run(x), chain.run(None, {"x": x})[0])


def test_gelu_is_torchs(instruction_set: str) -> None:
    torch = pytest.importorskip("torch")
    layer = Layer.random(100, 70, bias=True, activation=GELU)
    x = layer.rows(50)
    products = Layer(layer.codes, layer.scale, layer.bias).expected(x)
    expected = torch.nn.functional.gelu(torch.from_numpy(products)).numpy()
    np.testing.assert_allclose(layer.run(x), expected, rtol=0, atol=1e-6)


def test_the_result_may_lie_where_the_residual_lay(instruction_set: str) -> None:
    layer = Layer.random(96, 50)
    x, residual = layer.rows(10), layer.expected(layer.rows(10, seed=1))
    expected = layer.expected(x, residual)
    session = layer.session(residual=True)
    shared = onnxruntime.OrtValue.ortvalue_from_numpy(residual)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_ortvalue_input("residual", shared)
    binding.bind_ortvalue_output("y", shared)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(shared.numpy(), expected)


def test_sessions_of_several_threads_do_not_share_scratch(instruction_set: str) -> None:
    layers = [Layer.random(200 + 60 * i, 2048 + i) for i in range(3)]
    sessions = [layer.session(threads=2) for layer in layers]

    def check(number: int) -> None:
        layer, session = layers[number % 3], sessions[number % 3]
        x = layer.rows(1 + number, seed=number)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], layer.expected(x))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(check, range(24)))


def test_no_rows_give_no_rows() -> None:
    layer = Layer.random(64, 16)
    assert layer.run(np.empty((2, 0, 64), np.float32)).shape == (2, 0, 16)


WRONG: dict[str, tuple[dict[str, Array], str]] = {
    "unpacked": ({"weight": np.zeros((64, 32), np.int8)}, "weight must be packed"),
    "depth": ({"weight": np.zeros((2, 8, 16, 4), np.int8)}, "weight must be packed"),
    "blocks": ({"weight": np.zeros((3, 16, 16, 4), np.int8)}, "scale must be [N]"),
    "scale": ({"scale": np.ones(16, np.float32)}, "scale must be [N]"),
    "offset": ({"offset": np.zeros(31, np.int32)}, "offset must have as many"),
    "sums": ({"offset": np.full(32, 128, np.int32)}, "weight and offset disagree"),
    "bias": ({"bias": np.zeros(33, np.float32)}, "bias must be [N]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_weights_are_refused_when_the_session_is_made(name: str) -> None:
    changed, message = WRONG[name]
    layer = Layer.random(64, 32, bias=True)
    with pytest.raises(Exception, match=re.escape(message)):
        layer.session(**changed)


def test_another_packing_is_refused_when_the_session_is_made() -> None:
    layer = Layer.random(128, 32)
    weight, _ = pack_int8(layer.codes)
    with pytest.raises(Exception, match="weight and offset disagree"):
        layer.session(weight=np.ascontiguousarray(weight.swapaxes(0, 1)).reshape(weight.shape))


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(Exception, match="activation must be 0"):
        Layer(*pack_layer(), activation=4).session()


def pack_layer() -> tuple[Array, Array]:
    layer = Layer.random(64, 16)
    return layer.codes, layer.scale


def test_rows_that_do_not_fit_are_refused() -> None:
    layer = Layer.random(64, 16)
    with pytest.raises(Exception, match="x must be"):
        layer.run(np.zeros((1, 65), np.float32))
    with pytest.raises(Exception, match="residual must have the shape"):
        layer.run(layer.rows(2), np.zeros((1, 16), np.float32))


@pytest.mark.parametrize("shape", [(1, 1), (64, 16), (65, 17), (200, 50)])
def test_packing_is_undone(shape: tuple[int, int]) -> None:
    codes = Layer.random(*shape).codes
    weight, offset = pack_int8(codes)
    np.testing.assert_array_equal(unpack_int8(weight, shape), codes)
    np.testing.assert_array_equal(offset, 128 * codes.sum(axis=0, dtype=np.int32))
