"""Compare HalfLinear with products in float64, and its bits with themselves."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from one_operator import available_instruction_sets, operator_session

from skipdec.engines.kernels.library import INSTRUCTION_SET_VARIABLE
from skipdec.engines.kernels.packing import pack_half, unpack_half

Array = np.ndarray[Any, Any]

INSTRUCTION_SETS = available_instruction_sets()

pytestmark = pytest.mark.skipif(not INSTRUCTION_SETS, reason="the kernels were not compiled")

NONE, RELU, GELU = 0, 1, 2
DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@dataclass(frozen=True)
class Layer:
    """A layer of 16 bits: weight [K, N], optional bias float32 [N]."""

    weight: Array
    bias: Array | None = None
    activation: int = NONE

    @classmethod
    def random(
        cls,
        depth: int,
        columns: int,
        dtype: str = "float16",
        bias: bool = False,
        activation: int = NONE,
    ) -> Layer:
        random = np.random.default_rng(depth * 1000 + columns)
        return cls(
            random.standard_normal((depth, columns)).astype(DTYPES[dtype]),
            random.standard_normal(columns).astype(np.float32) if bias else None,
            activation,
        )

    def rows(self, count: int, seed: int = 0) -> Array:
        random = np.random.default_rng(seed)
        return random.standard_normal((count, self.weight.shape[0])).astype(np.float32)

    def session(
        self, residual: bool = False, threads: int = 1, **changed: Array | int
    ) -> onnxruntime.InferenceSession:
        constants: dict[str, Array] = {"weight": pack_half(self.weight)}
        if self.bias is not None:
            constants["bias"] = self.bias
        bias = "bias" if self.bias is not None else ""
        operands = ["x", "weight", bias, "residual" if residual else ""]
        attributes = {"N": self.weight.shape[1], "activation": self.activation}
        for name, value in changed.items():
            if isinstance(value, int):
                attributes[name] = value
            else:
                constants[name] = value
        return operator_session("HalfLinear", operands, constants, attributes, threads=threads)

    def run(self, x: Array, residual: Array | None = None, threads: int = 1) -> Array:
        feeds = {"x": x} if residual is None else {"x": x, "residual": residual}
        y: Array = self.session(residual is not None, threads).run(None, feeds)[0]
        return y

    def check(self, y: Array, x: Array, residual: Array | None = None) -> None:
        """Check that ``y`` is within the error bound of K roundings per sum."""
        depth = self.weight.shape[0]
        weight = self.weight.astype(np.float64)
        expected = x.astype(np.float64) @ weight
        bound = np.abs(x).astype(np.float64) @ np.abs(weight)
        for term in [self.bias, residual]:
            if term is not None:
                bound += np.abs(term)
        if self.bias is not None:
            expected += self.bias
        if self.activation == RELU:
            expected = np.maximum(expected, 0)
        if residual is not None:
            expected += residual
        assert (np.abs(y - expected) <= (depth + 2) * 2.0**-24 * bound).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 14, 15, 29, 64])
@pytest.mark.parametrize("shape", [(1, 1), (16, 16), (33, 17), (100, 70)])
def test_any_rows_are_the_product(
    instruction_set: str, shape: tuple[int, int], rows: int, dtype: str
) -> None:
    layer = Layer.random(*shape, dtype)
    x = layer.rows(rows)
    layer.check(layer.run(x), x)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("activation", [NONE, RELU])
@pytest.mark.parametrize("bias", [False, True])
def test_every_form_is_the_product(
    instruction_set: str, bias: bool, activation: int, residual: bool
) -> None:
    layer = Layer.random(50, 40, "bfloat16", bias, activation)
    x = layer.rows(20)
    added = layer.bias * layer.rows(20, seed=1)[:, :40] if layer.bias is not None else None
    layer.check(layer.run(x, added), x, added)


def test_gelu_is_torchs(instruction_set: str) -> None:
    torch = pytest.importorskip("torch")
    layer = Layer.random(50, 70, bias=True, activation=GELU)
    x = layer.rows(10)
    products = Layer(layer.weight, layer.bias).run(x)
    expected = torch.nn.functional.gelu(torch.from_numpy(products)).numpy()
    np.testing.assert_allclose(layer.run(x), expected, rtol=2e-6, atol=2e-6)


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    depth=st.integers(1, 300),
    columns=st.integers(1, 100),
    rows=st.integers(1, 40),
    dtype=st.sampled_from(list(DTYPES)),
    form=st.tuples(st.booleans(), st.sampled_from([NONE, RELU, GELU]), st.booleans()),
)
def test_bits_depend_on_no_instruction_set_no_other_row_and_no_thread(
    monkeypatch: pytest.MonkeyPatch,
    depth: int,
    columns: int,
    rows: int,
    dtype: str,
    form: tuple[bool, int, bool],
) -> None:
    bias, activation, residual = form
    layer = Layer.random(depth, columns, dtype, bias, activation)
    x = layer.rows(rows, seed=depth)
    added = np.random.default_rng(2).standard_normal((rows, columns)).astype(np.float32)
    results = []
    for name in INSTRUCTION_SETS:
        monkeypatch.setenv(INSTRUCTION_SET_VARIABLE, name)
        results.append(layer.run(x, added if residual else None))
        cut = rows // 2
        parts = [
            layer.run(x[part], added[part] if residual else None, threads=2)
            for part in (slice(0, 1), slice(1, cut), slice(max(cut, 1), rows))
        ]
        np.testing.assert_array_equal(np.concatenate(parts), results[-1])
    for result in results[1:]:
        np.testing.assert_array_equal(result.view(np.uint32), results[0].view(np.uint32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_wide_products_are_divided_between_threads(instruction_set: str, dtype: str) -> None:
    layer = Layer.random(129, 1000, dtype)
    x = layer.rows(9)
    np.testing.assert_array_equal(layer.run(x, threads=2), layer.run(x))


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_stays_so_and_disturbs_no_other(
    instruction_set: str, poison: float
) -> None:
    layer = Layer.random(37, 33, bias=True, activation=RELU)
    x = layer.rows(20)
    expected = layer.run(x)
    x[5, 36] = poison
    y = layer.run(x)
    assert (~np.isfinite(y[5]) | (y[5] == 0)).all()
    assert not np.isfinite(y[5]).all()
    np.testing.assert_array_equal(np.delete(y, 5, 0), np.delete(expected, 5, 0))


def test_subnormal_and_infinite_weights_are_taken_as_they_are(instruction_set: str) -> None:
    weight = np.array([[2.0**-24, np.inf, np.nan, 65504, -0.0]], np.float16)
    y = Layer(weight).run(np.float32([[2.0], [-1.0]]))
    expected = np.float32([[2.0], [-1.0]]) * weight.astype(np.float32)
    np.testing.assert_array_equal(y, expected)


def test_no_rows_give_no_rows() -> None:
    layer = Layer.random(8, 16)
    assert layer.run(np.empty((2, 0, 8), np.float32)).shape == (2, 0, 16)


WRONG: dict[str, tuple[dict[str, Array | int], str]] = {
    "unpacked": ({"weight": np.zeros((8, 32), np.float16)}, "weight must be packed"),
    "blocks": ({"weight": np.zeros((3, 8, 16), np.float16)}, "weight must be packed"),
    "type": ({"weight": np.zeros((2, 8, 16), np.float32)}, "weight must be float16 or bfloat16"),
    "bias": ({"bias": np.zeros(33, np.float32)}, "bias must be [N]"),
    "N": ({"N": 0}, "N must be"),
    "activation": ({"activation": 4}, "activation must be 0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_nodes_are_refused_when_the_session_is_made(name: str) -> None:
    changed, message = WRONG[name]
    with pytest.raises(Exception, match=re.escape(message)):
        Layer.random(8, 32, bias=True).session(**changed)


def test_rows_that_do_not_fit_are_refused() -> None:
    layer = Layer.random(8, 16)
    with pytest.raises(Exception, match="x must be"):
        layer.run(np.zeros((1, 9), np.float32))
    with pytest.raises(Exception, match="residual must have the shape"):
        layer.run(layer.rows(2), np.zeros((1, 16), np.float32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (8, 16), (9, 17)])
def test_packing_is_undone(shape: tuple[int, int], dtype: str) -> None:
    weight = Layer.random(*shape, dtype).weight
    np.testing.assert_array_equal(unpack_half(pack_half(weight), shape[1]), weight)
