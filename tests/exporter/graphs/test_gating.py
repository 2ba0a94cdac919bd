"""Gates of feed-forward layers are recognised in graphs and fused into products."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import onnx_ir as ir
import pytest
from canonical_graphs import canonical_graph
from tiny_models import LLAMA_BASE, LLAMA_STRUCTURES

from skipdec.engines.errors import UnsupportedModelError
from skipdec.engines.manifest import EngineKind, ModelSpec, PrecisionSpec
from skipdec.exporter.architecture.architecture import family_architecture
from skipdec.exporter.graphs.fusion import gate_after
from skipdec.exporter.graphs.lowering import LoweredEngine, lowering_of

PRECISIONS = {
    "int8": PrecisionSpec(quantize="int8"),
    "int4": PrecisionSpec(quantize="int4", block_size=32, accuracy_level=4),
    "int8-block": PrecisionSpec(quantize="int8-block", block_size=64, accuracy_level=4),
    "float16": PrecisionSpec(dtype="float16"),
    "float32": PrecisionSpec(),
}
PRODUCTS = {
    "int8": "QuantizedLinear",
    "int4": "BlockLinear4",
    "int8-block": "BlockLinear8",
    "float16": "FloatLinear",
    "float32": "FloatLinear",
}
MOST_NODES = 9  # in a layer: two norms, four products, attention, casts of the norms' weights


def spec_of(structure: str) -> ModelSpec:
    config = {**LLAMA_BASE, **LLAMA_STRUCTURES[structure]}
    return family_architecture(str(config["model_type"])).spec_from_config(config, structure, None)


def lowered(structure: str, precision: PrecisionSpec) -> LoweredEngine:
    model = spec_of(structure)
    graph = canonical_graph(EngineKind.LAYER, model, "float32")
    return lowering_of("skipdec")(graph, EngineKind.LAYER, model, precision)


def operators(engine: LoweredEngine) -> Counter[str]:
    return Counter(node.op_type for node in engine.graph.graph)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("structure", LLAMA_STRUCTURES)
def test_a_layer_is_attention_four_products_and_two_norms(structure: str, precision: str) -> None:
    engine = lowered(structure, PRECISIONS[precision])
    counts = operators(engine)
    assert counts[PRODUCTS[precision]] == 4
    assert counts.total() <= MOST_NODES, counts
    assert not counts["Sigmoid"] + counts["MatMul"] + counts["RMSNormalization"] + counts["Add"]
    (gated,) = (node for node in engine.graph.graph if node.attributes.get_int("gated", 0))
    assert gated.name == "mlp.gate_up_proj.weight"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_gated_weight_without_a_gate_is_refused(precision: str) -> None:
    model = spec_of("llama")
    graph = canonical_graph(EngineKind.LAYER, model, "float32").clone()
    next(node for node in graph.graph if node.op_type == "Sigmoid").op_type = "Tanh"
    with pytest.raises(UnsupportedModelError, match=r"gate_up_proj\.weight \| .* has is_gated"):
        lowering_of("skipdec")(graph, EngineKind.LAYER, model, PRECISIONS[precision])


def graph_of(nodes: Sequence[ir.Node], halves: ir.Value, *outputs: ir.Value) -> ir.Graph:
    return ir.Graph([halves], outputs, nodes=nodes)


def gate_nodes(halves: ir.Value) -> list[ir.Node]:
    split = ir.node("Split", [halves], {"axis": -1, "num_outputs": 2}, num_outputs=2)
    gate, other = split.outputs
    sigmoid = ir.node("Sigmoid", [gate])
    silu = ir.node("Mul", [gate, sigmoid.outputs[0]])
    return [split, sigmoid, silu, ir.node("Mul", [silu.outputs[0], other])]


def test_only_a_complete_gate_is_recognised() -> None:
    halves = ir.val("halves", dtype=ir.DataType.FLOAT, shape=["B", "S", 12])
    split, sigmoid, silu, product = gate_nodes(halves)
    (result,) = product.outputs
    graph = graph_of([split, sigmoid, silu, product], halves, result)
    assert gate_after(graph, split) == [split, sigmoid, silu, product]
    assert gate_after(graph, sigmoid) is None
    assert gate_after(graph, None) is None


@pytest.mark.parametrize("index", [1, 2])
def test_a_gate_whose_inner_values_are_used_elsewhere_is_not_fused(index: int) -> None:
    halves = ir.val("halves", dtype=ir.DataType.FLOAT, shape=["B", "S", 12])
    nodes = gate_nodes(halves)
    graph = graph_of(nodes, halves, nodes[-1].outputs[0], nodes[index].outputs[0])
    assert gate_after(graph, nodes[0]) is None


def test_exchanged_gate_and_other_are_not_fused() -> None:
    halves = ir.val("halves", dtype=ir.DataType.FLOAT, shape=["B", "S", 12])
    split, sigmoid, silu, product = gate_nodes(halves)
    gate, other = split.outputs
    sigmoid.replace_input_with(0, other)
    silu.replace_input_with(0, other)
    product.replace_input_with(1, gate)
    graph = graph_of([split, sigmoid, silu, product], halves, product.outputs[0])
    assert gate_after(graph, split) is None
