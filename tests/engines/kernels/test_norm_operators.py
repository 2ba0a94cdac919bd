"""Compare LayerNorm and RmsNorm with float64, and their bits between runs."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from one_operator import available_instruction_sets, operator_session

from skipdec.engines.kernels.library import INSTRUCTION_SET_VARIABLE

Array = np.ndarray[Any, Any]

INSTRUCTION_SETS = available_instruction_sets()

pytestmark = pytest.mark.skipif(not INSTRUCTION_SETS, reason="the kernels were not compiled")

EPSILON = 1e-5
FORMS = [("LayerNorm", True), ("LayerNorm", False), ("RmsNorm", False)]  # operator, has bias
OPERATORS = ["LayerNorm", "RmsNorm"]


def session(
    operator: str,
    scale: Array,
    bias: Array | None = None,
    epsilon: float = EPSILON,
    threads: int = 1,
) -> onnxruntime.InferenceSession:
    constants = {"scale": scale} if bias is None else {"scale": scale, "bias": bias}
    attributes = {"epsilon": epsilon}
    return operator_session(operator, ["x", *constants], constants, attributes, threads=threads)


def operands(size: int, rows: int) -> tuple[Array, Array, Array]:
    random = np.random.default_rng(size)
    x = 3 + 2 * random.standard_normal((rows, size))
    scale, bias = random.standard_normal((2, size))
    return x.astype(np.float32), scale.astype(np.float32), bias.astype(np.float32)


def expected(operator: str, x: Array, scale: Array, bias: Array | None) -> Array:
    exact = x.astype(np.float64)
    if operator == "LayerNorm":
        exact = exact - exact.mean(-1, keepdims=True)
    root = np.sqrt((exact**2).mean(-1, keepdims=True) + EPSILON)
    normal: Array = exact / root * scale
    return normal if bias is None else normal + bias


@pytest.mark.parametrize(("operator", "with_bias"), FORMS)
@pytest.mark.parametrize("size", [1, 15, 16, 17, 48, 63, 64, 65, 130, 768, 2048])
def test_rows_are_normalised(
    instruction_set: str, size: int, operator: str, with_bias: bool
) -> None:
    x, scale, any_bias = operands(size, 5)
    bias = any_bias if with_bias else None
    (y,) = session(operator, scale, bias).run(None, {"x": x})
    np.testing.assert_allclose(y, expected(operator, x, scale, bias), rtol=0, atol=5e-6)


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    form=st.sampled_from(FORMS),
    size=st.integers(1, 300),
    rows=st.integers(1, 300),
    exponent=st.integers(-20, 18),
)
def test_bits_are_independent_of_instruction_set_batch_and_threads(
    monkeypatch: pytest.MonkeyPatch, form: tuple[str, bool], size: int, rows: int, exponent: int
) -> None:
    operator, with_bias = form
    x, scale, any_bias = operands(size, rows)
    bias = any_bias if with_bias else None
    x *= np.float32(10.0**exponent)
    results = []
    for name in INSTRUCTION_SETS:
        monkeypatch.setenv(INSTRUCTION_SET_VARIABLE, name)
        results += [
            session(operator, scale, bias, threads=2).run(None, {"x": x})[0],
            session(operator, scale, bias).run(None, {"x": x[rows // 2 :]})[0],
        ]
    for result in results[1:]:
        np.testing.assert_array_equal(
            result.view(np.uint32), results[0][rows - len(result) :].view(np.uint32)
        )


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_non_finite_row_becomes_nan_and_changes_no_other(
    instruction_set: str, operator: str, poison: float
) -> None:
    x, scale, _ = operands(50, 4)
    finite = session(operator, scale).run(None, {"x": x})[0]
    x[2, 49] = poison
    finite[2] = np.nan
    np.testing.assert_array_equal(session(operator, scale).run(None, {"x": x})[0], finite)


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_row_whose_squares_overflow_is_nan(instruction_set: str, operator: str) -> None:
    signs = np.resize(np.float32([1, -1]), 20)
    x = np.float32([[1e20], [1e18]]) * signs
    (y,) = session(operator, np.ones(20, np.float32)).run(None, {"x": x})
    assert np.isnan(y[0]).all()
    np.testing.assert_allclose(y[1], signs, rtol=1e-6)


def test_a_constant_row_gives_the_bias(instruction_set: str) -> None:
    _, scale, bias = operands(77, 1)
    x = np.full((2, 3, 77), 2.5, np.float32)
    (y,) = session("LayerNorm", scale, bias).run(None, {"x": x})
    np.testing.assert_array_equal(y, np.broadcast_to(bias, y.shape))


@pytest.mark.parametrize("operator", OPERATORS)
def test_heads_of_a_token_are_normalised_one_by_one(instruction_set: str, operator: str) -> None:
    x, scale, _ = operands(24, 2 * 3 * 5)
    (y,) = session(operator, scale).run(None, {"x": x.reshape(2, 3, 5, 24)})
    (rows,) = session(operator, scale).run(None, {"x": x})
    np.testing.assert_array_equal(y, rows.reshape(2, 3, 5, 24))


@pytest.mark.parametrize("operator", OPERATORS)
def test_wrong_nodes_and_calls_are_refused(operator: str) -> None:
    ones = np.ones(8, np.float32)
    with pytest.raises(Exception, match=re.escape("scale must be an initialiser [E]")):
        session(operator, ones[None])
    with pytest.raises(Exception, match="epsilon must be"):
        session(operator, ones, epsilon=-1.0)
    with pytest.raises(Exception, match="x must be"):
        session(operator, ones).run(None, {"x": np.zeros((1, 9), np.float32)})


def test_a_bias_of_another_length_is_refused() -> None:
    ones = np.ones(8, np.float32)
    with pytest.raises(Exception, match="bias must be as long as scale"):
        session("LayerNorm", ones, ones[1:])
