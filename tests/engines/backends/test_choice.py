"""The graph with which a device draws guesses is valid and draws what the host draws."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from skipdec import SamplingParams
from skipdec.engines.backends.choice import choice_graph, choice_spec
from skipdec.engines.manifest import EngineKind, EngineSpec, TensorRole, TensorSpec
from skipdec.engines.memory import Array
from skipdec.runtime.tokens.drawing import MOST_PROBABLE, NumpyDrawer, TokenDraw

ROWS, VOCAB, CANDIDATES = 400, 300, 64


def choice() -> EngineSpec:
    role = TensorRole
    logits = TensorSpec(name="in", role=role.LOGITS, dtype="float32", shape=("R", VOCAB))
    top = ("R", CANDIDATES)
    outputs = (
        TensorSpec(name="largest", role=role.TOP_LOGITS, dtype="float32", shape=top),
        TensorSpec(name="whose", role=role.TOP_TOKEN_IDS, dtype="int64", shape=top),
    )
    candidates = EngineSpec(
        name="candidates",
        kind=EngineKind.CANDIDATES,
        graph="candidates.onnx",
        inputs=(logits,),
        outputs=outputs,
        step_bytes=0,
    )
    return choice_spec(candidates)


def chosen(logits: Array, draws: list[TokenDraw]) -> list[int]:
    top = np.argsort(-logits, axis=1, kind="stable")[:, :CANDIDATES]
    columns = np.array(draws, np.float32)
    np.minimum(columns[:, -1], CANDIDATES - 1, out=columns[:, -1])
    session = onnxruntime.InferenceSession(choice_graph(choice()))
    inputs = {"logits": logits, "top_token_ids": top, "draws": columns}
    (tokens,) = session.run(None, inputs)
    assert isinstance(tokens, np.ndarray)
    assert tokens.shape == (len(logits), 1)
    return [int(token) for token in tokens[:, 0]]


def test_the_graph_is_valid_and_has_few_standard_operators() -> None:
    model = onnx.load_from_string(choice_graph(choice()))
    onnx.checker.check_model(model, full_check=True)
    assert {entry.domain for entry in model.opset_import} == {""}
    assert len(model.graph.node) == 50


@pytest.mark.parametrize(
    "changes",
    [
        {"top_p": 0.9},
        {"top_p": 0.5, "temperature": 1.3},
        {"top_k": 20},
        {"top_k": 1},
        {"min_p": 0.05},
        {"top_k": 30, "min_p": 0.01, "top_p": 0.8},
    ],
    ids=str,
)
def test_the_graph_draws_the_same_tokens_as_the_host(changes: dict[str, float]) -> None:
    rng = np.random.default_rng(7)
    logits = (3 * rng.standard_normal((ROWS, VOCAB))).astype(np.float32)
    uniforms = rng.random(ROWS)
    params = SamplingParams(temperature=0.7).updated(**changes)
    drawer = NumpyDrawer(params)
    expected = [drawer.draw(row, uniform) for row, uniform in zip(logits, uniforms, strict=True)]
    assert chosen(logits, [TokenDraw.of(params, uniform) for uniform in uniforms]) == expected


def test_the_first_of_equally_probable_tokens_is_drawn() -> None:
    logits = np.zeros((2, VOCAB), np.float32)
    logits[0, [31, 17, 90]] = logits[1, 60] = 5.0
    assert chosen(logits, [MOST_PROBABLE] * 2) == [17, 60]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_logits_still_give_a_token(value: float) -> None:
    logits = np.full((1, VOCAB), value, np.float32)
    params = SamplingParams(temperature=0.7, top_p=0.9)
    assert 0 <= chosen(logits, [TokenDraw.of(params, 0.4)])[0] < VOCAB
