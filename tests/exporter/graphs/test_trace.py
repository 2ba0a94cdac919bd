"""The canonical graph is standard, reproducible, and equivalent to its torch module."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from built_engines import (
    STRUCTURES,
    Session,
    build,
    call_layer,
    causal_mask,
    module,
    position_ids,
    tiny_spec,
)
from canonical_graphs import canonical_graph

from skipdec.engines.manifest import EngineKind, FloatType, TensorRole
from skipdec.exporter.architecture.architecture import kind_parameters
from skipdec.exporter.graphs.lowering import parameters_as_inputs
from skipdec.exporter.graphs.trace import trace_engine


@pytest.mark.parametrize("kind", EngineKind)
@pytest.mark.parametrize(
    ("structure", "dtype"), [*((name, "float32") for name in STRUCTURES), ("pre_norm", "float16")]
)
def test_initialisers_without_data_equal_the_parameters(
    structure: str, dtype: FloatType, kind: EngineKind
) -> None:
    model = tiny_spec(structure)
    initializers = canonical_graph(kind, model, dtype).graph.initializers
    names = {parameter.name for parameter in kind_parameters(kind, model)}
    assert {name for name, value in initializers.items() if value.const_value is None} == names


@pytest.mark.parametrize("structure", STRUCTURES)
def test_layer_graph_has_only_attention_scatter_and_standard_operators(structure: str) -> None:
    graph = canonical_graph(EngineKind.LAYER, tiny_spec(structure), "float32")
    proto = ir.to_proto(parameters_as_inputs(graph))
    onnx.checker.check_model(proto, full_check=True)
    assert [(opset.domain, opset.version) for opset in proto.opset_import] == [("", 24)]
    operators = [node.op_type for node in proto.graph.node]
    assert operators.count("TensorScatter") == 2
    assert operators.count("Attention") == 1


def test_a_trace_has_every_parameter_and_no_paths_and_is_the_same_each_time() -> None:
    model = tiny_spec(hidden_size=16, ffn_dim=16)  # its norms have equal content
    traced = [trace_engine(EngineKind.LAYER, model, "float32") for _ in range(2)]
    assert len({name for name in traced[0].graph.initializers if "layer_norm" in name}) == 4
    first, second = (
        ir.to_proto(parameters_as_inputs(each)).SerializeToString(deterministic=True)
        for each in traced
    )
    assert first == second
    assert "doc_string" not in str(onnx.load_from_string(first))
    assert "metadata_props" not in str(onnx.load_from_string(first))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_canonical_layer_equals_its_module_on_rows_of_any_length(
    structure: str, tmp_path: Path
) -> None:
    model, rng = tiny_spec(structure), np.random.default_rng(0)
    starts, tokens, capacity = np.array([4, 0, 7]), 2, 12
    cache = (3, model.num_kv_heads, capacity, model.head_dim)
    inputs = {
        "hidden_states": rng.standard_normal((3, tokens, model.hidden_size), np.float32),
        "past_key": rng.standard_normal(cache, np.float32),
        "past_value": rng.standard_normal(cache, np.float32),
        "write_indices": starts,
        "attention_mask": causal_mask(starts, tokens, capacity),
    }
    built = build(EngineKind.LAYER, model, tmp_path, target="canonical")
    expected = call_layer(module(EngineKind.LAYER, model), *map(torch.from_numpy, inputs.values()))
    if TensorRole.POSITION_IDS in built.spec.roles:
        inputs["position_ids"] = position_ids(starts, tokens)
    outputs = Session(tmp_path, built).run(inputs)
    for output, reference in zip(outputs.values(), expected, strict=True):
        np.testing.assert_allclose(output, reference.numpy(), atol=2e-5)
