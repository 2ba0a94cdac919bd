"""Lowers canonical graphs to ONNX Runtime's own operators (domain com.microsoft).

TensorScatter + Attention → GroupQueryAttention, residual Add + LayerNormalization →
SkipLayerNormalization, MatMul with a weight that is to be quantised → integer products.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from ..engines.manifest import EngineKind, ModelSpec, PrecisionSpec, TensorRole
from .lowering import LoweredEngine, consumer, producer, the_node
from .signature import Signature, canonical_signature, tensor_spec

CONTRIB_DOMAIN = "com.microsoft"


def lower(
    graph: ir.Model, kind: EngineKind, model: ModelSpec, precision: PrecisionSpec
) -> LoweredEngine:
    """Return a lowered copy of the canonical ``graph``, as described in this file's heading."""
    lowered = graph.clone()
    lowered.opset_imports[CONTRIB_DOMAIN] = 1
    signature = canonical_signature(kind, model, precision.dtype)
    if kind is EngineKind.LAYER:
        signature = _group_query_attention(lowered.graph, model, signature)
        if precision.dtype == "float32":  # in float16 the norm stays a float32 island
            _skip_layer_normalization(lowered.graph)
    RemoveUnusedNodesPass()(lowered)
    return LoweredEngine(lowered, signature, precision)


def _group_query_attention(graph: ir.Graph, model: ModelSpec, signature: Signature) -> Signature:
    """Replace everything between the packed projection and ``out_proj`` with one node.

    GroupQueryAttention takes query, key and value packed as [B, S, 3E], appends to the cache at
    each row's own length and is causal by itself. ``seqlens_k`` [B] int32 is each row's total
    length less one; ``total_sequence_length`` is the longest row's total.
    """
    attention = the_node(graph, "Attention")
    packed = producer(_before(attention.inputs[0], "Split")).inputs[0]
    merged = consumer(consumer(attention.outputs[0]).outputs[0]).outputs[0]  # Transpose, Reshape
    inputs = {value.name: value for value in graph.inputs}
    seqlens_k = tensor_spec(TensorRole.SEQLENS_K, "int32", "B")
    total_sequence_length = tensor_spec(TensorRole.TOTAL_SEQUENCE_LENGTH, "int32")
    lengths = [
        ir.Value(name=spec.name, shape=ir.Shape(spec.shape), type=ir.TensorType(ir.DataType.INT32))
        for spec in (seqlens_k, total_sequence_length)
    ]
    node = ir.node(
        "GroupQueryAttention",
        [packed, None, None, inputs["past_key"], inputs["past_value"], *lengths],
        {"num_heads": model.num_heads, "kv_num_heads": model.num_heads},
        domain=CONTRIB_DOMAIN,
        num_outputs=3,
        name="group_query_attention",
    )
    _hidden_states_out, *present = graph.outputs
    for new, old in zip(node.outputs, (merged, *present), strict=True):
        _take_over(old, new)
    graph.insert_before(consumer(node.outputs[0]), node)
    graph.inputs[3:] = lengths
    return Signature((*signature.inputs[:3], seqlens_k, total_sequence_length), signature.outputs)


def _before(value: ir.Value | None, op_type: str) -> ir.Value:
    """Walk back along first inputs to the output of the nearest node of ``op_type``."""
    while producer(value).op_type != op_type:
        value = producer(value).inputs[0]
    assert value is not None
    return value


def _skip_layer_normalization(graph: ir.Graph) -> None:
    """Fuse residual Add, and the bias Add before it, into the LayerNormalization after it.

    The sum stays available as the fused node's fourth output where it is used again (pre-norm).
    """
    for norm in [node for node in graph if node.op_type == "LayerNormalization"]:
        total = norm.inputs[0]
        assert total is not None
        residual_add = total.producer()
        if residual_add is None:  # a pre-norm layer's first norm
            continue
        skip, branch = residual_add.inputs
        bias: ir.Value | None = None
        bias_add = branch.producer() if branch is not None else None
        if bias_add is not None and bias_add.op_type == "Add":
            branch, bias = bias_add.inputs
        scale, shift = norm.inputs[1], norm.inputs[2] if len(norm.inputs) > 2 else None
        fused = ir.node(
            "SkipLayerNormalization",
            [branch, skip, scale, shift, bias],
            {"epsilon": norm.attributes["epsilon"].as_float()},
            domain=CONTRIB_DOMAIN,
            num_outputs=4,
            name=f"skip_{norm.name}",
        )
        graph.insert_before(norm, fused)
        _take_over(norm.outputs[0], fused.outputs[0])
        total.replace_all_uses_with(fused.outputs[3])
        graph.remove([norm, residual_add], safe=True)
        if not fused.outputs[3].uses():
            fused.resize_outputs(1)


def _take_over(old: ir.Value, new: ir.Value) -> None:
    """Let ``new`` replace ``old`` everywhere, as a graph output under the same name too."""
    new.type, new.shape = old.type, old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    new.name, old.name = old.name, None
