"""Test the contract of every backend's sessions, on the CPU, host memory and real devices."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from backend_tensors import overwrite
from fixture_types import Exported
from loaded_backends import BACKENDS, ON_GPUS, Loaded

from skipdec.engines.bundle.files import HeldDirectory
from skipdec.engines.errors import BundleError, EnvironmentMismatchError, UsageError
from skipdec.engines.manifest import TensorRole
from skipdec.engines.memory import DeviceBuffer, DeviceTensor


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[pytest.mark.gpu] if name in ON_GPUS else []) for name in BACKENDS
    ],
)
def loaded(
    request: pytest.FixtureRequest, exported: Exported, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Loaded]:
    try:
        loaded = BACKENDS[request.param](exported, tmp_path_factory.mktemp("contract"))
    except EnvironmentMismatchError as error:
        pytest.skip(str(error))
    yield loaded
    loaded.backend.close()


@pytest.fixture
def on_device(loaded: Loaded) -> Loaded:
    if loaded.backend.device is None:
        pytest.skip("engines run at once on the host")
    return loaded


def test_each_run_reads_the_current_contents_of_bound_memory(loaded: Loaded) -> None:
    session = loaded.session("layer_000")
    tensors = loaded.tensors(session, rows=2, step=1)
    hidden_states = tensors[TensorRole.HIDDEN_STATES]
    values = loaded.get(hidden_states)
    results = []
    binding = session.bind(tensors)
    for factor in (1, -1, 1):
        overwrite(loaded.backend, hidden_states, values * values.dtype.type(factor))
        binding.run()
        results.append(loaded.get(tensors[TensorRole.HIDDEN_STATES_OUT]))
    first, changed, again = results
    assert not np.allclose(first, changed)
    np.testing.assert_array_equal(first, again)


def test_hidden_states_may_be_input_and_output_in_one_buffer(loaded: Loaded) -> None:
    if loaded.backend.device is not None:
        pytest.skip("on a device, hidden states alternate between two buffers")
    session = loaded.session("layer_000")
    apart = loaded.tensors(session, rows=2, step=3)
    shared = loaded.tensors(session, rows=2, step=3)
    shared[TensorRole.HIDDEN_STATES_OUT] = shared[TensorRole.HIDDEN_STATES]
    np.testing.assert_array_equal(loaded.run_once(session, shared), loaded.run_once(session, apart))


@pytest.mark.parametrize(("rows", "step", "past"), [(1, 4, 0), (3, 4, 0), (1, 1, 5), (3, 1, 5)])
def test_the_cache_is_extended_in_place_and_unchanged_elsewhere(
    loaded: Loaded, rows: int, step: int, past: int
) -> None:
    session = loaded.session("layer_000")
    tensors = loaded.tensors(session, rows, step, past)
    before = loaded.get(tensors[TensorRole.PAST_KEY])
    loaded.run_once(session, tensors)
    after = loaded.get(tensors[TensorRole.PAST_KEY])
    np.testing.assert_array_equal(after[:, :, :past], before[:, :, :past])
    np.testing.assert_array_equal(after[:, :, past + step :], before[:, :, past + step :])
    assert (after[:, :, past : past + step] != 7).all()


def test_one_token_at_a_time_equals_all_at_once(loaded: Loaded) -> None:
    session = loaded.session("layer_000")
    whole = loaded.tensors(session, rows=2, step=4)
    tokens = loaded.get(whole[TensorRole.HIDDEN_STATES])
    expected = loaded.run_once(session, whole)  # [2, 4, E]
    cache = loaded.tensors(session, rows=2, step=4)
    shared = {role: cache[role] for role in cache if "past" in role or "present" in role}
    for position in range(4):
        tensors = loaded.tensors(session, rows=2, step=1, past=position) | shared
        token = tokens[:, position : position + 1]
        overwrite(loaded.backend, tensors[TensorRole.HIDDEN_STATES], token)
        actual = loaded.run_once(session, tensors)
        np.testing.assert_allclose(
            actual[:, 0], expected[:, position], rtol=0, atol=loaded.tolerance
        )


def test_the_first_rows_of_larger_buffers_bind_without_a_copy(loaded: Loaded) -> None:
    session = loaded.session("layer_000")
    tensors = loaded.tensors(session, rows=4, step=1)
    scalars = {TensorRole.TOTAL_SEQUENCE_LENGTH}
    sliced = {role: whole if role in scalars else whole[:2] for role, whole in tensors.items()}
    output = tensors[TensorRole.HIDDEN_STATES_OUT]
    overwrite(loaded.backend, output, np.full_like(loaded.get(output), 5))
    loaded.run_once(session, sliced)
    assert (loaded.get(output)[:2] != 5).any()
    assert (loaded.get(output)[2:] == 5).all()


def test_a_released_binding_frees_its_tensors(loaded: Loaded) -> None:
    session = loaded.session("layer_000")
    tensors = loaded.tensors(session, rows=1, step=1)
    binding = session.bind(tensors)
    binding.run()
    kept = weakref.ref(tensors[TensorRole.HIDDEN_STATES])
    tensors.clear()
    gc.collect()
    assert kept() is not None
    binding.release()
    gc.collect()
    assert kept() is None


def test_all_wrong_tensors_are_named_together(loaded: Loaded) -> None:
    session = loaded.session("layer_000")
    tensors = loaded.tensors(session, rows=2, step=1)
    del tensors[TensorRole.PRESENT_KEY]
    tensors[TensorRole.LOGITS] = np.zeros((2, 5), np.float32)
    hidden_states = tensors[TensorRole.HIDDEN_STATES]
    if isinstance(hidden_states, DeviceTensor):
        tensors[TensorRole.HIDDEN_STATES] = replace(hidden_states, dtype=cast(Any, "float64"))
        tensors[TensorRole.HIDDEN_STATES_OUT] = np.zeros((2, 1), np.float32)
        misplaced = "hidden_states_out is on the host"
    else:
        tensors[TensorRole.HIDDEN_STATES] = hidden_states.astype(np.float64)
        tensors[TensorRole.HIDDEN_STATES_OUT] = hidden_states[..., :-1]
        misplaced = "not C-contiguous"
    with pytest.raises(UsageError) as caught:
        session.bind(tensors)
    text = str(caught.value)
    for part in ("layer_000", "present_key", "logits", "float64", misplaced, "expected"):
        assert part in text


def test_two_sizes_of_one_symbol_are_refused(loaded: Loaded) -> None:
    session = loaded.session("layer_000")
    tensors = loaded.tensors(session, rows=2, step=1)
    other = loaded.tensors(session, rows=3, step=1)
    tensors[TensorRole.PAST_KEY] = other[TensorRole.PAST_KEY]
    with pytest.raises(UsageError, match="past_key has B = 3, but hidden_states has 2"):
        session.bind(tensors)


def test_memory_for_buffers_is_aligned(loaded: Loaded) -> None:
    buffer = loaded.backend.memory.allocate(1000)
    assert buffer.nbytes == 1000
    if isinstance(buffer, DeviceBuffer):
        assert buffer.address % 256 == 0
    else:
        buffer[...] = 1
        assert buffer.ctypes.data % 64 == 0


def test_a_graph_that_cannot_be_loaded_is_named(loaded: Loaded, tmp_path: Path) -> None:
    spec = loaded.bundle.manifest.head
    (tmp_path / spec.graph).parent.mkdir(parents=True)
    (tmp_path / spec.graph).write_bytes(b"not a graph")
    broken = replace(loaded.bundle, directory=HeldDirectory(tmp_path))
    with pytest.raises(BundleError, match="head"):
        loaded.backend.load(broken, spec)


def test_a_run_is_deferred_until_the_device_executes_it(on_device: Loaded) -> None:
    session = on_device.session("layer_000")
    expected = on_device.run_once(session, on_device.tensors(session, rows=2, step=1))
    tensors = on_device.tensors(session, rows=2, step=1)
    values = on_device.get(tensors[TensorRole.HIDDEN_STATES])
    binding = session.bind(tensors)
    overwrite(on_device.backend, tensors[TensorRole.HIDDEN_STATES], np.zeros_like(values))
    overwrite(on_device.backend, tensors[TensorRole.HIDDEN_STATES], values)
    binding.run()
    overwrite(on_device.backend, tensors[TensorRole.HIDDEN_STATES], np.zeros_like(values))
    np.testing.assert_array_equal(on_device.get(tensors[TensorRole.HIDDEN_STATES_OUT]), expected)


def test_a_captured_run_repeats_on_the_same_addresses(on_device: Loaded) -> None:
    device = on_device.backend.device
    assert device is not None
    session = on_device.session("layer_000")
    tensors = on_device.tensors(session, rows=2, step=1)
    values = on_device.get(tensors[TensorRole.HIDDEN_STATES])
    binding = session.bind(tensors)
    binding.run()  # warm-up: no memory may be allocated during a capture
    expected = on_device.get(tensors[TensorRole.HIDDEN_STATES_OUT])
    graph = device.capture(binding.run)
    overwrite(on_device.backend, tensors[TensorRole.HIDDEN_STATES], -values)
    graph.launch()
    changed = on_device.get(tensors[TensorRole.HIDDEN_STATES_OUT])
    overwrite(on_device.backend, tensors[TensorRole.HIDDEN_STATES], values)
    graph.launch()
    np.testing.assert_array_equal(on_device.get(tensors[TensorRole.HIDDEN_STATES_OUT]), expected)
    assert not np.allclose(changed, expected)
    graph.destroy()
