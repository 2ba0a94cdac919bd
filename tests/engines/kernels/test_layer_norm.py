"""Compare LayerNorm with float64, and its bits with themselves."""

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


def session(
    scale: Array, bias: Array | None = None, epsilon: float = EPSILON, threads: int = 1
) -> onnxruntime.InferenceSession:
    constants = {"scale": scale} if bias is None else {"scale": scale, "bias": bias}
    attributes = {"epsilon": epsilon}
    return operator_session("LayerNorm", ["x", *constants], constants, attributes, threads=threads)


def operands(size: int, rows: int) -> tuple[Array, Array, Array]:
    random = np.random.default_rng(size)
    x = 3 + 2 * random.standard_normal((rows, size))
    scale, bias = random.standard_normal((2, size))
    return x.astype(np.float32), scale.astype(np.float32), bias.astype(np.float32)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("size", [1, 15, 16, 17, 48, 63, 64, 65, 130, 768, 2048])
def test_rows_are_normalised(instruction_set: str, size: int, with_bias: bool) -> None:
    x, scale, bias = operands(size, 5)
    (y,) = session(scale, bias if with_bias else None).run(None, {"x": x})
    exact = x.astype(np.float64)
    centred = exact - exact.mean(-1, keepdims=True)
    expected = centred / np.sqrt(exact.var(-1, keepdims=True) + EPSILON) * scale
    expected += bias if with_bias else 0
    np.testing.assert_allclose(y, expected, rtol=0, atol=5e-6)


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(size=st.integers(1, 300), rows=st.integers(1, 300), exponent=st.integers(-20, 18))
def test_bits_depend_on_no_instruction_set_no_other_row_and_no_thread(
    monkeypatch: pytest.MonkeyPatch, size: int, rows: int, exponent: int
) -> None:
    x, scale, bias = operands(size, rows)
    x *= np.float32(10.0**exponent)
    results = []
    for name in INSTRUCTION_SETS:
        monkeypatch.setenv(INSTRUCTION_SET_VARIABLE, name)
        results += [
            session(scale, bias, threads=2).run(None, {"x": x})[0],
            session(scale, bias).run(None, {"x": x[rows // 2 :]})[0],
        ]
    for result in results[1:]:
        np.testing.assert_array_equal(
            result.view(np.uint32), results[0][rows - len(result) :].view(np.uint32)
        )


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_is_nan_and_disturbs_no_other(
    instruction_set: str, poison: float
) -> None:
    x, scale, bias = operands(50, 4)
    expected = session(scale, bias).run(None, {"x": x})[0]
    x[2, 49] = poison
    expected[2] = np.nan
    np.testing.assert_array_equal(session(scale, bias).run(None, {"x": x})[0], expected)


def test_a_constant_row_is_the_bias(instruction_set: str) -> None:
    _, scale, bias = operands(77, 1)
    x = np.full((2, 3, 77), 2.5, np.float32)
    (y,) = session(scale, bias).run(None, {"x": x})
    np.testing.assert_array_equal(y, np.broadcast_to(bias, y.shape))


def test_wrong_nodes_and_calls_are_refused() -> None:
    ones = np.ones(8, np.float32)
    for scale, bias, epsilon, message in [
        (ones[None], None, EPSILON, "scale must be an initialiser [E]"),
        (ones, ones[1:], EPSILON, "bias must be as long as scale"),
        (ones, None, -1.0, "epsilon must be"),
    ]:
        with pytest.raises(Exception, match=re.escape(message)):
            session(scale, bias, epsilon)
    with pytest.raises(Exception, match="x must be"):
        session(ones).run(None, {"x": np.zeros((1, 9), np.float32)})
