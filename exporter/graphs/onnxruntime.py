"""Lowers canonical graphs to ONNX Runtime's own operators (domain com.microsoft).

TensorScatter + Attention → GroupQueryAttention; products that are to be quantised → integer
products (products.py). Residual Add and LayerNormalization stay two nodes: fused as
SkipLayerNormalization they take longer on a CPU (opt-125m, 8 rows: 24 of 290 µs a layer).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from ...engines.manifest import EngineKind, ModelSpec, PrecisionSpec, TensorRole
from ..architecture.architecture import canonical_signature
from ..architecture.signature import Signature, tensor_spec
from .lowering import (
    CONTRIB_DOMAIN,
    LoweredEngine,
    consumer,
    producer,
    replace_value,
    the_node,
)
from .products import quantize_products


def lower(
    graph: ir.Model, kind: EngineKind, model: ModelSpec, precision: PrecisionSpec
) -> LoweredEngine:
    """Return a lowered copy of the canonical ``graph``, as described in this file's heading."""
    lowered = graph.clone()
    lowered.opset_imports[CONTRIB_DOMAIN] = 1
    signature = canonical_signature(kind, model, precision.dtype)
    if kind is EngineKind.LAYER:
        signature = _group_query_attention(lowered.graph, model, signature)
    quantizers = quantize_products(lowered.graph, kind, model, precision)
    RemoveUnusedNodesPass()(lowered)
    return LoweredEngine(lowered, signature, precision, quantizers)


def _group_query_attention(graph: ir.Graph, model: ModelSpec, signature: Signature) -> Signature:
    """Replace everything from the projections of query, key and value to the next one by one node.

    GroupQueryAttention takes query, key and value as one packed [B, S, (N + 2M) D] for M heads of
    keys, or, where more than a split is done to them before attention (rotary embeddings), as three
    tensors. It appends to the cache at each row's own length and is causal by itself.
    ``seqlens_k`` [B] int32 is each row's total length less one; ``total_sequence_length`` is the
    longest row's total.
    """
    attention = the_node(graph, "Attention")
    query, present_key, present_value, *_ = attention.inputs
    parts = [query, *(producer(present).inputs[1] for present in (present_key, present_value))]
    operands = _packed(parts) or [_merged_heads(graph, part) for part in parts]
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
        [*operands, inputs["past_key"], inputs["past_value"], *lengths],
        {"num_heads": model.num_heads, "kv_num_heads": model.num_kv_heads},
        domain=CONTRIB_DOMAIN,
        num_outputs=3,
        name="group_query_attention",
    )
    _hidden_states_out, *present = graph.outputs
    for new, old in zip(node.outputs, (merged, *present), strict=True):
        replace_value(old, new)
    graph.insert_before(consumer(node.outputs[0]), node)
    placed = len(graph.inputs)
    graph.inputs[3:5] = lengths  # in place of write_indices and attention_mask
    assert len(graph.inputs) == placed, [value.name for value in graph.inputs]
    before, after = signature.inputs[:3], signature.inputs[5:]
    return Signature((*before, seqlens_k, total_sequence_length, *after), signature.outputs)


def _packed(parts: Sequence[ir.Value | None]) -> list[ir.Value | None] | None:
    """The operands of a packed projection, if ``parts`` are nothing but its split."""
    sources = []
    for part in parts:
        source = part
        while producer(source).op_type in ("Transpose", "Reshape"):
            source = producer(source).inputs[0]
        sources.append(source)
    split = producer(sources[0])
    if split.op_type != "Split" or list(split.outputs) != sources:
        return None
    return [split.inputs[0], None, None]


def _merged_heads(graph: ir.Graph, part: ir.Value | None) -> ir.Value:
    """[B, N, S, D] → [B, S, N D], right behind the node that makes ``part``."""
    node = producer(part)
    shape = ir.tensor(np.array([0, 0, -1], np.int64), name="merged_heads")
    if shape.name not in graph.initializers:
        graph.register_initializer(ir.val(shape.name, const_value=shape))
    transpose = ir.node("Transpose", [part], {"perm": (0, 2, 1, 3)})
    reshape = ir.node("Reshape", [transpose.outputs[0], graph.initializers["merged_heads"]])
    graph.insert_after(node, [transpose, reshape])
    return reshape.outputs[0]
