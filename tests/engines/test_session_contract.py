"""What every backend's sessions must do; run over all backends that are installed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from skipdec.engines.bundle import EngineBundle
from skipdec.engines.errors import BundleError, MissingExtraError, UsageError
from skipdec.engines.manifest import EngineSpec, TensorRole
from skipdec.engines.session import BACKENDS, EngineBackend, EngineSession

Array = NDArray[Any]
CAPACITY = 9


@dataclass(frozen=True)
class Loaded:
    """A tiny bundle and one backend that loads it."""

    bundle: EngineBundle
    backend: EngineBackend

    def session(self, name: str) -> EngineSession:
        spec = next(spec for spec in self.bundle.manifest.engines if spec.name == name)
        return self.backend.load(self.bundle, spec)


@pytest.fixture(scope="module", params=list(BACKENDS))
def loaded(request: pytest.FixtureRequest, exported: Callable[..., Path]) -> Loaded:
    try:
        backend = BACKENDS.load(request.param)()
    except MissingExtraError as error:
        pytest.skip(str(error))
    return Loaded(EngineBundle.open(exported("pre_norm", target=request.param)), backend)


def layer_tensors(spec: EngineSpec, rows: int, step: int, past: int = 0) -> dict[TensorRole, Array]:
    """Arrays for ``step`` tokens a row after ``past`` ones; unused cache positions hold 7."""
    sizes = {"B": rows, "S": step, "T": CAPACITY}
    random = np.random.default_rng(0)
    tensors: dict[TensorRole, Array] = {}
    for tensor in (*spec.inputs, *spec.outputs):
        shape = [sizes[size] if isinstance(size, str) else size for size in tensor.shape]
        tensors[tensor.role] = random.standard_normal(shape).astype(tensor.dtype)
    for role in (TensorRole.PAST_KEY, TensorRole.PAST_VALUE):
        tensors[role][:, :, past:] = 7
    tensors[TensorRole.PRESENT_KEY] = tensors[TensorRole.PAST_KEY]
    tensors[TensorRole.PRESENT_VALUE] = tensors[TensorRole.PAST_VALUE]
    lengths: dict[TensorRole, Array] = {
        TensorRole.SEQLENS_K: np.full(rows, past + step - 1, np.int32),
        TensorRole.TOTAL_SEQUENCE_LENGTH: np.array(past + step, np.int32),
        TensorRole.WRITE_INDICES: np.full(rows, past, np.int64),
        TensorRole.ATTENTION_MASK: np.broadcast_to(
            np.tri(step, CAPACITY, past, dtype=bool), (rows, 1, step, CAPACITY)
        ).copy(),
    }
    return tensors | {role: array for role, array in lengths.items() if role in spec.roles}


def run_once(session: EngineSession, tensors: dict[TensorRole, Array]) -> Array:
    binding = session.bind(tensors)
    binding.run()
    binding.release()
    return tensors[TensorRole.HIDDEN_STATES_OUT]


def test_a_binding_reads_the_memory_as_it_is_at_each_run(loaded: Loaded) -> None:
    session = loaded.session("layer_000")
    tensors = layer_tensors(session.spec, rows=2, step=1)
    binding = session.bind(tensors)
    binding.run()
    first = tensors[TensorRole.HIDDEN_STATES_OUT].copy()
    tensors[TensorRole.HIDDEN_STATES] *= -1
    binding.run()
    changed = tensors[TensorRole.HIDDEN_STATES_OUT].copy()
    tensors[TensorRole.HIDDEN_STATES] *= -1
    binding.run()
    assert not np.allclose(first, changed)
    np.testing.assert_array_equal(tensors[TensorRole.HIDDEN_STATES_OUT], first)


def test_hidden_states_may_be_input_and_output_at_once(loaded: Loaded) -> None:
    session = loaded.session("layer_000")
    apart = layer_tensors(session.spec, rows=2, step=3)
    shared = layer_tensors(session.spec, rows=2, step=3)
    shared[TensorRole.HIDDEN_STATES_OUT] = shared[TensorRole.HIDDEN_STATES]
    np.testing.assert_array_equal(run_once(session, shared), run_once(session, apart))


@pytest.mark.parametrize(("rows", "step", "past"), [(1, 4, 0), (3, 4, 0), (1, 1, 5), (3, 1, 5)])
def test_the_cache_is_extended_in_place_and_not_touched_elsewhere(
    loaded: Loaded, rows: int, step: int, past: int
) -> None:
    session = loaded.session("layer_000")
    tensors = layer_tensors(session.spec, rows, step, past)
    before = tensors[TensorRole.PAST_KEY].copy()
    run_once(session, tensors)
    after = tensors[TensorRole.PAST_KEY]
    np.testing.assert_array_equal(after[:, :, :past], before[:, :, :past])
    np.testing.assert_array_equal(after[:, :, past + step :], before[:, :, past + step :])
    assert (after[:, :, past : past + step] != 7).all()


def test_one_token_at_a_time_equals_all_at_once(loaded: Loaded) -> None:
    session = loaded.session("layer_000")
    whole = layer_tensors(session.spec, rows=2, step=4)
    expected = run_once(session, dict(whole))  # [2, 4, E]
    cache = layer_tensors(session.spec, rows=2, step=4)
    for position in range(4):
        tensors = layer_tensors(session.spec, rows=2, step=1, past=position)
        for role in (TensorRole.PAST_KEY, TensorRole.PAST_VALUE):
            tensors[role] = cache[role]
        tensors[TensorRole.PRESENT_KEY] = cache[TensorRole.PAST_KEY]
        tensors[TensorRole.PRESENT_VALUE] = cache[TensorRole.PAST_VALUE]
        token = whole[TensorRole.HIDDEN_STATES][:, position : position + 1].copy()
        tensors[TensorRole.HIDDEN_STATES] = token
        actual = run_once(session, tensors)
        np.testing.assert_allclose(actual[:, 0], expected[:, position], rtol=0, atol=1e-4)


def test_the_first_rows_of_larger_buffers_bind_without_a_copy(loaded: Loaded) -> None:
    session = loaded.session("layer_000")
    tensors = layer_tensors(session.spec, rows=4, step=1)
    batched = {TensorRole.TOTAL_SEQUENCE_LENGTH}
    sliced = {role: array if role in batched else array[:2] for role, array in tensors.items()}
    tensors[TensorRole.HIDDEN_STATES_OUT][...] = 5
    run_once(session, sliced)
    assert (tensors[TensorRole.HIDDEN_STATES_OUT][:2] != 5).any()
    assert (tensors[TensorRole.HIDDEN_STATES_OUT][2:] == 5).all()


def test_a_released_binding_lets_its_arrays_go(loaded: Loaded) -> None:
    session = loaded.session("layer_000")
    tensors = layer_tensors(session.spec, rows=1, step=1)
    binding = session.bind(tensors)
    binding.run()
    kept = weakref.ref(tensors[TensorRole.HIDDEN_STATES])
    tensors.clear()
    binding.release()
    gc.collect()
    assert kept() is None


def test_all_wrong_tensors_are_named_at_once(loaded: Loaded) -> None:
    session = loaded.session("layer_000")
    tensors = layer_tensors(session.spec, rows=2, step=1)
    del tensors[TensorRole.PRESENT_KEY]
    tensors[TensorRole.LOGITS] = np.zeros((2, 5), np.float32)
    tensors[TensorRole.HIDDEN_STATES] = tensors[TensorRole.HIDDEN_STATES].astype(np.float64)
    tensors[TensorRole.HIDDEN_STATES_OUT] = tensors[TensorRole.HIDDEN_STATES_OUT][..., :-1]
    with pytest.raises(UsageError) as caught:
        session.bind(tensors)
    text = str(caught.value)
    for part in ("layer_000", "present_key", "logits", "float64", "not C-contiguous", "expected"):
        assert part in text


def test_memory_for_buffers_is_writable_and_aligned(loaded: Loaded) -> None:
    memory = loaded.backend.memory.allocate(1000)
    memory[...] = 1
    assert memory.nbytes == 1000
    assert memory.ctypes.data % 64 == 0


def test_a_graph_that_cannot_be_loaded_is_named(loaded: Loaded, tmp_path: Path) -> None:
    spec = loaded.bundle.manifest.head
    (tmp_path / spec.graph).parent.mkdir(parents=True)
    (tmp_path / spec.graph).write_bytes(b"not a graph")
    broken = EngineBundle(tmp_path, loaded.bundle.manifest, loaded.bundle.schedule_document)
    with pytest.raises(BundleError, match="head"):
        loaded.backend.load(broken, spec)
