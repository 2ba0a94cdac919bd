"""Test what only gated products have: gates far from zero, and nodes that are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from linear_layers import GATED, RELU, SILU, random_layer
from one_operator import available_instruction_sets

pytestmark = pytest.mark.skipif(
    not available_instruction_sets(), reason="the kernels were not compiled"
)

FORMS = pytest.mark.parametrize("form", GATED)


@FORMS
def test_gates_far_from_zero_are_closed_or_open(instruction_set: str, form: str) -> None:
    gates = np.float32([-1e30, -200, -88.5, -80, -20, 0, 20, 80, 200, 1e30])
    bias = np.concatenate([gates, np.full(10, 2, np.float32)])
    layer = replace(random_layer(form, 1, 10), weight=np.zeros((1, 20), np.float32), bias=bias)
    y = layer.run(np.zeros((1, 1), np.float32))[0]
    exact = gates.astype(np.float64)
    with np.errstate(over="ignore"):
        expected = 2 * exact / (1 + np.exp(-exact))
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=2e-36)


@FORMS
def test_halves_of_unequal_width_and_residuals_are_refused(form: str) -> None:
    layer = random_layer(form, 32, 16)
    odd = replace(layer.plain(), weight=layer.weight[:, :31])
    with pytest.raises(Exception, match="must have an even number N"):
        odd.session(gated=1)
    with pytest.raises(Exception, match="gated must be 0 or 1"):
        layer.session(gated=2)
    with pytest.raises(Exception, match=r"must have activation 2 \(GELU\) or 3 \(SiLU\)"):
        layer.session(activation=RELU)
    with pytest.raises(Exception, match="a gated product takes no residual"):
        layer.run(layer.rows(2), np.zeros((2, 16), np.float32))


@pytest.mark.parametrize("form", ["gated int8", "gated int4-32", "gated int8-64"])
def test_the_packing_of_a_plain_product_is_refused(form: str) -> None:
    plain = random_layer(form, 64, 24).plain()
    with pytest.raises(Exception, match="weight"):
        plain.session(gated=1, activation=SILU)
