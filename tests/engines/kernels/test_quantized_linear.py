"""QuantizedLinear alone: magnitudes, ONNX Runtime's own nodes, wrong weights, packing."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from linear_layers import NONE, RELU
from linear_layers import QuantizedLayer as Layer
from one_operator import available_instruction_sets
from onnxruntime_products import integer_chain, session_of

from skipdec.engines.kernels.packing import pack_int8, unpack_int8

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.skipif(
    not available_instruction_sets(), reason="the kernels were not compiled"
)


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


def test_equals_the_nodes_of_onnx_runtime(instruction_set: str) -> None:
    layer = Layer.random(333, 100, bias=True, activation=RELU)
    x = layer.rows(37)
    chain = session_of([integer_chain("chain", layer.weight, layer.scale, layer.bias, relu=True)])
    np.testing.assert_array_equal(layer.run(x), chain.run(None, {"x": x})[0])


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
    weight, _ = pack_int8(layer.weight)
    with pytest.raises(Exception, match="weight and offset disagree"):
        layer.session(weight=np.ascontiguousarray(weight.swapaxes(0, 1)).reshape(weight.shape))


@pytest.mark.parametrize("shape", [(1, 1), (64, 16), (65, 17), (200, 50)])
def test_packing_is_undone(shape: tuple[int, int]) -> None:
    codes = Layer.random(*shape).weight
    weight, offset = pack_int8(codes)
    np.testing.assert_array_equal(unpack_int8(weight, shape), codes)
    np.testing.assert_array_equal(offset, 128 * codes.sum(axis=0, dtype=np.int32))
