"""Norms and rotation of heads become operands of Attention; layers compute the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from built_engines import TOLERANCE, decode_ragged, tiny_spec
from canonical_graphs import canonical_graph

from skipdec.engines.kernels.library import find_library
from skipdec.engines.manifest import EngineKind, ModelSpec, PrecisionSpec, TensorRole
from skipdec.exporter.graphs.skipdec import lower

MODELS: dict[str, dict[str, Any]] = {  # changes of a LLaMA
    "scaled": {"head_norms": "none", "rotary_dim": 16},
    "normed": {"head_norms": "head", "rotary_dim": 16, "rope_scale": 1.0},
    "partial": {"head_norms": "none", "rope_scale": 1.0},
    "normed whole": {"head_norms": "whole", "rotary_dim": 16, "rope_scale": 1.0},
}
OPERANDS = {  # of Attention: queries, keys and values (1 packed or 3), rates, norms
    "scaled": (1, "self_attn.inv_freq"),
    "normed": (1, "self_attn.inv_freq", "self_attn.q_norm.weight", "self_attn.k_norm.weight"),
    "partial": (1, "self_attn.inv_freq"),
    "normed whole": (3, "self_attn.inv_freq"),
}


def spec(name: str) -> ModelSpec:
    return tiny_spec("llama", **MODELS[name])


@pytest.mark.parametrize("name", MODELS)
def test_attention_takes_norms_and_rates_and_the_layer_no_positions(name: str) -> None:
    canonical = canonical_graph(EngineKind.LAYER, spec(name), "float32")
    lowered = lower(canonical, EngineKind.LAYER, spec(name), PrecisionSpec())
    graph = lowered.graph.graph
    (node,) = (each for each in graph if each.op_type == "Attention")
    assert sum(value is not None for value in node.inputs[:3]) == OPERANDS[name][0]
    assert tuple(value.name for value in node.inputs[6:] if value is not None) == OPERANDS[name][1:]
    assert not {"RotaryEmbedding", "Cos", "Transpose", "Reshape"} & {each.op_type for each in graph}
    assert TensorRole.POSITION_IDS not in [value.name for value in graph.inputs]
    assert [each.name for each in lowered.signature.inputs] == [each.name for each in graph.inputs]


@pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")
@pytest.mark.parametrize("name", MODELS)
def test_lowered_layers_equal_the_module(name: str, tmp_path: Path) -> None:
    for actual, expected in decode_ragged(spec(name), tmp_path, PrecisionSpec(), "skipdec"):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE["float32"])
