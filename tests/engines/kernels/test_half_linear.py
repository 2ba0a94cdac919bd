"""HalfLinear alone: weights at the borders of their type, wrong nodes, packing."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from linear_layers import DTYPES, HalfLayer
from one_operator import available_instruction_sets

from skipdec.engines.kernels.packing import pack_half, unpack_half

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.skipif(
    not available_instruction_sets(), reason="the kernels were not compiled"
)


def test_subnormal_and_infinite_weights_are_taken_as_they_are(instruction_set: str) -> None:
    weight = np.array([[2.0**-24, np.inf, np.nan, 65504, -0.0]], np.float16)
    y = HalfLayer(weight).run(np.float32([[2.0], [-1.0]]))
    expected = np.float32([[2.0], [-1.0]]) * weight.astype(np.float32)
    np.testing.assert_array_equal(y, expected)


WRONG: dict[str, tuple[dict[str, Array | int], str]] = {
    "unpacked": ({"weight": np.zeros((8, 32), np.float16)}, "weight must be packed"),
    "blocks": ({"weight": np.zeros((3, 8, 16), np.float16)}, "weight must be packed"),
    "type": ({"weight": np.zeros((2, 8, 16), np.float32)}, "weight must be float16 or bfloat16"),
    "bias": ({"bias": np.zeros(33, np.float32)}, "bias must be [N]"),
    "N": ({"N": 0}, "N must be"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_nodes_are_refused_when_the_session_is_made(name: str) -> None:
    changed, message = WRONG[name]
    with pytest.raises(Exception, match=re.escape(message)):
        HalfLayer.random(8, 32, bias=True).session(**changed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (8, 16), (9, 17)])
def test_packing_is_undone(shape: tuple[int, int], dtype: str) -> None:
    weight = HalfLayer.random(*shape, dtype=dtype).weight
    np.testing.assert_array_equal(unpack_half(pack_half(weight), shape[1]), weight)
