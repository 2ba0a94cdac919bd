"""Compare gated products with SiLU(gate) · other from the operator's plain product."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from one_operator import available_instruction_sets, operator_session

from skipdec.engines.kernels.library import INSTRUCTION_SET_VARIABLE
from skipdec.exporter.quantization.packed import (
    FloatQuantizer,
    PackedChannelQuantizer,
    PackedInt4Quantizer,
    PackedInt8BlockQuantizer,
    PackedQuantizer,
)

Array = np.ndarray[Any, Any]

INSTRUCTION_SETS = available_instruction_sets()

pytestmark = pytest.mark.skipif(not INSTRUCTION_SETS, reason="the kernels were not compiled")

SILU = 3
QUANTIZERS: dict[str, PackedQuantizer] = {
    "int8": PackedChannelQuantizer(is_gated=True),
    "int4": PackedInt4Quantizer(32, is_gated=True),
    "int4-128": PackedInt4Quantizer(128, is_gated=True),
    "int8-block": PackedInt8BlockQuantizer(64, is_gated=True),
    "float32": FloatQuantizer("float32", is_gated=True),
    "float16": FloatQuantizer("float16", is_gated=True),
    "bfloat16": FloatQuantizer("bfloat16", is_gated=True),
}
FORMS = pytest.mark.parametrize("form", QUANTIZERS)


@dataclass(frozen=True)
class Layer:
    """A weight [K, 2 F] of gate and other, with an optional bias [2 F]."""

    quantizer: PackedQuantizer
    weight: Array
    bias: Array | None = None

    @classmethod
    def random(cls, form: str, depth: int, width: int, bias: bool = False) -> Layer:
        random = np.random.default_rng(depth * 1000 + width)
        return cls(
            QUANTIZERS[form],
            random.standard_normal((depth, 2 * width), np.float32) * np.float32(depth**-0.5),
            random.standard_normal(2 * width, np.float32) if bias else None,
        )

    def rows(self, count: int, seed: int = 0) -> Array:
        random = np.random.default_rng(seed)
        return 3 * random.standard_normal((count, len(self.weight)), np.float32)

    def session(
        self, threads: int = 1, residual: bool = False, **changed: int
    ) -> onnxruntime.InferenceSession:
        depth, columns = self.weight.shape
        constants = dict(self.quantizer.encode(self.weight))
        names = [*constants, "bias" if self.bias is not None else ""]
        if self.bias is not None:
            constants["bias"] = self.bias
        operands = ["x", *names, "residual"] if residual else ["x", *names]
        attributes = self.quantizer.attributes((depth, columns))
        attributes["activation"] = SILU if self.quantizer.is_gated else 0
        return operator_session(
            self.quantizer.operator, operands, constants, attributes | changed, threads=threads
        )

    def run(self, x: Array, threads: int = 1) -> Array:
        y: Array = self.session(threads).run(None, {"x": x})[0]
        return y

    def plain(self) -> Layer:
        """Return the ungated product, whose columns have equal bits."""
        return replace(self, quantizer=replace(self.quantizer, is_gated=False))


def silu_of_half(products: Array) -> Array:
    """Compute SiLU of the first half of the columns times the other half, in float64."""
    gate, other = np.split(products.astype(np.float64), 2, -1)
    y: Array = gate / (1 + np.exp(-gate)) * other
    return y


@FORMS
@pytest.mark.parametrize("shape", [(1, 1), (64, 16), (65, 24), (96, 112), (40, 172)])
def test_any_number_of_rows_gives_silu_of_the_gate_times_the_other(
    instruction_set: str, shape: tuple[int, int], form: str
) -> None:
    layer = Layer.random(form, *shape, bias=shape[1] % 16 == 0)
    session, plain = layer.session(), layer.plain().session()
    for rows in (1, 2, 3, 5, 7, 8, 13, 17, 33, 64):
        x = layer.rows(rows)
        np.testing.assert_allclose(
            session.run(None, {"x": x})[0],
            silu_of_half(plain.run(None, {"x": x})[0]),
            rtol=1e-6,
            atol=1e-30,
            err_msg=f"{rows} rows",
        )


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    form=st.sampled_from(list(QUANTIZERS)),
    depth=st.integers(1, 300),
    width=st.integers(1, 100),
    rows=st.integers(1, 40),
    bias=st.booleans(),
    exponent=st.integers(-20, 4),
)
def test_bits_are_independent_of_instruction_set_batch_and_threads(
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    depth: int,
    width: int,
    rows: int,
    bias: bool,
    exponent: int,
) -> None:
    layer = Layer.random(form, depth, width, bias)
    x = layer.rows(rows, seed=depth) * np.float32(10.0**exponent)
    results = []
    for name in INSTRUCTION_SETS:
        monkeypatch.setenv(INSTRUCTION_SET_VARIABLE, name)
        results.append(layer.run(x))
        cut = rows // 2
        parts = [
            layer.run(x[part], threads=2)
            for part in (slice(0, 1), slice(1, cut), slice(max(cut, 1), rows))
        ]
        np.testing.assert_array_equal(np.concatenate(parts), results[-1])
    for result in results[1:]:
        np.testing.assert_array_equal(result.view(np.uint32), results[0].view(np.uint32))


@FORMS
def test_gates_far_from_zero_are_closed_or_open(instruction_set: str, form: str) -> None:
    gates = np.float32([-1e30, -200, -88.5, -80, -20, 0, 20, 80, 200, 1e30])
    bias = np.concatenate([gates, np.full(10, 2, np.float32)])
    layer = Layer(QUANTIZERS[form], np.zeros((1, 20), np.float32), bias)
    y = layer.run(np.zeros((1, 1), np.float32))[0]
    exact = gates.astype(np.float64)
    with np.errstate(over="ignore"):
        expected = 2 * exact / (1 + np.exp(-exact))
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=2e-36)


@FORMS
def test_a_non_finite_row_stays_non_finite_and_changes_no_other(
    instruction_set: str, form: str
) -> None:
    layer = Layer.random(form, 37, 33, bias=True)
    session = layer.session()
    x = layer.rows(20)
    expected = np.delete(session.run(None, {"x": x})[0], 5, 0)
    for poison in (np.nan, np.inf, -np.inf):
        x[5, 36] = poison
        (y,) = session.run(None, {"x": x})
        assert not np.isfinite(y[5]).any(), poison
        np.testing.assert_array_equal(np.delete(y, 5, 0), expected, err_msg=f"{poison}")


@FORMS
def test_halves_of_unequal_width_and_residuals_are_refused(form: str) -> None:
    layer = Layer.random(form, 32, 16)
    odd = replace(layer.plain(), weight=layer.weight[:, :31])
    with pytest.raises(Exception, match="must have an even number N"):
        odd.session(gated=1)
    with pytest.raises(Exception, match="gated must be 0 or 1"):
        layer.session(gated=2)
    with pytest.raises(Exception, match=r"must have activation 2 \(GELU\) or 3 \(SiLU\)"):
        layer.session(activation=1)
    x = layer.rows(2)
    with pytest.raises(Exception, match="a gated product takes no residual"):
        layer.session(residual=True).run(None, {"x": x, "residual": np.zeros_like(x[:, :16])})


@pytest.mark.parametrize("form", ["int8", "int4", "int8-block"])
def test_the_packing_of_a_plain_product_is_refused(form: str) -> None:
    plain = Layer.random(form, 64, 24).plain()
    with pytest.raises(Exception, match="weight"):
        plain.session(gated=1, activation=SILU)
