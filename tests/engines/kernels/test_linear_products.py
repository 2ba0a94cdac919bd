"""Every linear operator is right, whatever the other rows, threads and instruction set."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product

import numpy as np
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from linear_layers import DTYPES, FORMS, GATED, GELU, NONE, RELU, random_layer
from one_operator import available_instruction_sets

from skipdec.engines.kernels.library import INSTRUCTION_SET_VARIABLE

INSTRUCTION_SETS = available_instruction_sets()

pytestmark = pytest.mark.skipif(not INSTRUCTION_SETS, reason="the kernels were not compiled")

SHAPES = [(1, 1), (33, 17), (64, 16), (65, 17), (320, 48), (768, 130)]
SOME_FORMS = ("int8", "int4-32", "int8-64", *DTYPES)
ONE_OF_EACH = pytest.mark.parametrize("form", SOME_FORMS)


@pytest.mark.parametrize("form", [*FORMS, *GATED])
@pytest.mark.parametrize("shape", SHAPES)
def test_any_number_of_rows_gives_the_product(
    instruction_set: str, form: str, shape: tuple[int, int]
) -> None:
    layer = random_layer(form, *shape)
    session, x = layer.session(), layer.rows(100)
    (y,) = session.run(None, {"x": x})
    layer.check(y, x)
    for rows in (*range(1, 10), 11, 12, 13, 14, 15, 16, 17, 29, 31, 33, 35, 64):
        np.testing.assert_array_equal(session.run(None, {"x": x[:rows]})[0], y[:rows])


@ONE_OF_EACH
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("activation", [NONE, RELU])
@pytest.mark.parametrize("bias", [False, True])
def test_every_form_gives_the_product(
    instruction_set: str, form: str, bias: bool, activation: int, residual: bool
) -> None:
    layer = random_layer(form, 100, 70, bias, activation)
    x, added = layer.rows(100), layer.residual(100) if residual else None
    layer.check(layer.run(x, added), x, added)


@ONE_OF_EACH
def test_a_thousand_rows_on_two_threads_give_the_product(instruction_set: str, form: str) -> None:
    layer = random_layer(form, 129, 200, bias=True)
    x = layer.rows(1000)
    y = layer.run(x.reshape(4, 250, 129), threads=2).reshape(1000, 200)
    layer.check(y, x)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    form=st.sampled_from([*FORMS, *GATED]),
    shape=st.tuples(st.integers(1, 300), st.integers(1, 100)),
    rows=st.integers(1, 40),
    exponent=st.integers(-30, 30),
    parts=st.tuples(st.booleans(), st.sampled_from([NONE, RELU, GELU]), st.booleans()),
)
def test_bits_are_independent_of_instruction_set_batch_and_threads(
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    shape: tuple[int, int],
    rows: int,
    exponent: int,
    parts: tuple[bool, int, bool],
) -> None:
    bias, activation, has_residual = parts
    layer = random_layer(form, *shape, bias, activation)
    most = 4 if form in GATED else 30  # products of gates and others overflow
    x = layer.rows(rows, seed=shape[0]) * np.float32(10.0 ** min(exponent, most))
    residual = layer.residual(rows) if has_residual and form not in GATED else None
    results = []
    for name in INSTRUCTION_SETS:
        monkeypatch.setenv(INSTRUCTION_SET_VARIABLE, name)
        results.append(layer.run(x, residual))
        cut = rows // 2
        some = [
            layer.run(x[part], None if residual is None else residual[part], threads=2)
            for part in (slice(0, 1), slice(1, cut), slice(max(cut, 1), rows))
        ]
        np.testing.assert_array_equal(np.concatenate(some), results[-1])
    for result in results[1:]:
        np.testing.assert_array_equal(result.view(np.uint32), results[0].view(np.uint32))


@ONE_OF_EACH
def test_gelu_equals_torchs(instruction_set: str, form: str) -> None:
    torch = pytest.importorskip("torch")
    layer = random_layer(form, 50, 70, bias=True, activation=GELU)
    x = layer.rows(10)
    products = replace(layer, activation=NONE).run(x)
    expected = torch.nn.functional.gelu(torch.from_numpy(products)).numpy()
    np.testing.assert_allclose(layer.run(x), expected, rtol=2e-6, atol=2e-6)


@ONE_OF_EACH
def test_gelu_of_a_large_negative_number_is_zero(instruction_set: str, form: str) -> None:
    bias = np.float32([-6, -10, -100, -1e4, -1e30])
    layer = replace(random_layer(form, 16, 5, activation=GELU), bias=bias)
    np.testing.assert_array_equal(layer.run(np.zeros((1, 16), np.float32)), np.zeros((1, 5)))


@ONE_OF_EACH
@pytest.mark.parametrize("threads", [1, 2])
def test_a_thread_without_subnormal_numbers_computes_the_same(form: str, threads: int) -> None:
    torch = pytest.importorskip("torch")
    layer = random_layer(form, 64, 1000)
    session = layer.session(threads=threads)
    x = layer.rows(200) * np.float32(1e-38)
    (y,) = session.run(None, {"x": x})
    assert torch.set_flush_denormal(True)
    try:
        (flushed,) = session.run(None, {"x": x})
    finally:
        torch.set_flush_denormal(False)
    np.testing.assert_array_equal(flushed.view(np.uint32), y.view(np.uint32))


@pytest.mark.parametrize("form", [*SOME_FORMS, *GATED])
def test_a_non_finite_row_stays_non_finite_and_changes_no_other(
    instruction_set: str, form: str
) -> None:
    layer = random_layer(form, 131, 33, bias=True, activation=RELU)
    session = layer.session()
    whole = layer.rows(20)
    expected = np.delete(session.run(None, {"x": whole})[0], 5, 0)
    for index, poison in product((0, 63, 130), (np.nan, np.inf, -np.inf)):
        x, named = whole.copy(), f"{poison} at {index}"
        x[5, index] = poison
        (y,) = session.run(None, {"x": x})
        if form in DTYPES:
            assert (~np.isfinite(y[5]) | (y[5] == 0)).all(), named
            assert not np.isfinite(y[5]).all(), named
        elif form in GATED:
            assert not np.isfinite(y[5]).any(), named
        else:
            assert np.isnan(y[5]).all(), named
        np.testing.assert_array_equal(np.delete(y, 5, 0), expected, err_msg=named)


@ONE_OF_EACH
def test_the_result_may_overwrite_the_residual(instruction_set: str, form: str) -> None:
    layer = random_layer(form, 96, 50)
    x, residual = layer.rows(10), layer.residual(10)
    expected = layer.run(x, residual)
    shared = onnxruntime.OrtValue.ortvalue_from_numpy(residual)
    session = layer.session(residual=True)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_ortvalue_input("residual", shared)
    binding.bind_ortvalue_output("y", shared)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(shared.numpy(), expected)


@ONE_OF_EACH
def test_sessions_of_several_threads_do_not_share_scratch(instruction_set: str, form: str) -> None:
    layers = [random_layer(form, 200 + 60 * i, 512 + i) for i in range(3)]
    sessions = [layer.session(threads=2) for layer in layers]
    inputs = [layer.rows(24) for layer in layers]
    alone = [layer.run(x) for layer, x in zip(layers, inputs, strict=True)]

    def check(number: int) -> None:
        (y,) = sessions[number % 3].run(None, {"x": inputs[number % 3][: 1 + number]})
        np.testing.assert_array_equal(y, alone[number % 3][: 1 + number])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(check, range(24)))


@ONE_OF_EACH
def test_rows_of_another_width_are_refused(form: str) -> None:
    layer = random_layer(form, 64, 16)
    assert layer.run(np.empty((2, 0, 64), np.float32)).shape == (2, 0, 16)
    for depth in (65, 32) if form == "int4-32" else (65,):  # int8 is padded to 64
        with pytest.raises(Exception, match="x must be"):
            layer.run(np.zeros((1, depth), np.float32))
    with pytest.raises(Exception, match="residual must have the shape"):
        layer.run(layer.rows(2), np.zeros((1, 16), np.float32))


@ONE_OF_EACH
def test_an_unknown_activation_is_refused(form: str) -> None:
    with pytest.raises(Exception, match="activation must be 0"):
        random_layer(form, 64, 16, activation=4).session()
