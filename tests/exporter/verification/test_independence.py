"""Detect a layer whose outputs depend on the batch or on how a prompt was cut."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hollow_bundles import hollow_manifest

from skipdec.engines.manifest import EngineSpec, TensorRole, TensorSpec
from skipdec.engines.memory import Array
from skipdec.exporter.verification.calls import EngineCalls
from skipdec.exporter.verification.engines import dependence

WIDTH = 8  # width of hidden states: two heads of 4


class Layer(EngineCalls):
    """Copies its input to caches and output, changing a last bit if ``depends_on`` applies."""

    def __init__(self, depends_on: str) -> None:
        self.depends_on = depends_on

    def layer(self, hidden_states: Array, key: Array, value: Array, starts: Array) -> Array:
        rows, tokens, _ = hidden_states.shape
        heads = hidden_states.reshape(rows, tokens, 2, 4).swapaxes(1, 2)
        for cache in (key, value):
            cache[:, :, starts[0] : starts[0] + tokens] = heads
        is_off = {"nothing": False, "batch": rows > 1, "cut": tokens == 10}[self.depends_on]
        return np.nextafter(hidden_states, np.float32(2)) if is_off else hidden_states

    def run(self, inputs: Mapping[TensorRole, Array]) -> list[Array]:
        raise NotImplementedError


@pytest.fixture
def spec() -> EngineSpec:
    (layer,) = hollow_manifest(1).layers
    role = TensorRole.HIDDEN_STATES
    hidden = TensorSpec(name=role, role=role, dtype="float32", shape=("B", "S", WIDTH))
    return layer.model_copy(update={"inputs": (hidden, *layer.inputs)})


@pytest.mark.parametrize(
    ("depends_on", "found"),
    [
        ("nothing", None),
        ("batch", "hidden states of row 0, its prompt whole in a batch of 4, differ"),
        ("cut", "hidden states of row 0, its prompt in pieces of 1, 8, 10 in a batch of 4"),
    ],
)
def test_dependence_on_other_tokens_is_detected(
    spec: EngineSpec, depends_on: str, found: str | None
) -> None:
    problem = dependence(Layer(depends_on), spec, np.random.default_rng(0))
    assert problem == found if found is None else str(problem).startswith(found)
