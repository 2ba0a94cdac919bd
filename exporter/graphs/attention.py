"""Replacement of a canonical graph's TensorScatter and Attention by one operator.

GroupQueryAttention and skipdec's Attention take the same inputs: query, key and value as one packed
[B, S, (N + 2M) D] for M key heads or, if they are transformed before attention (rotary embeddings),
as three tensors; the caches; and then the positions of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ...engines.manifest import ModelSpec
from .lowering import consumer, producer, replace_value, the_node

_MASKED_INPUTS = slice(3, 5)  # write_indices and attention_mask of canonical layers


def replace_attention(
    graph: ir.Graph, model: ModelSpec, operator: tuple[str, str], placing: Sequence[ir.Value]
) -> None:
    """Replace everything between the input and output projections of attention by one node.

    ``operator`` is its domain and type. ``placing`` are its last inputs, which replace the graph's
    write_indices and attention_mask.
    """
    attention = the_node(graph, "Attention")
    query, present_key, present_value, *_ = attention.inputs
    parts = [query, *(producer(present).inputs[1] for present in (present_key, present_value))]
    operands = _packed(parts) or [_merged_heads(graph, part) for part in parts]
    merged = consumer(consumer(attention.outputs[0]).outputs[0]).outputs[0]  # Transpose, Reshape
    inputs = {value.name: value for value in graph.inputs}
    domain, op_type = operator
    node = attention_node(
        op_type, domain, model, [*operands, inputs["past_key"], inputs["past_value"], *placing]
    )
    _hidden_states_out, *present = graph.outputs
    for new, old in zip(node.outputs, (merged, *present), strict=True):
        replace_value(old, new)
    graph.insert_before(consumer(node.outputs[0]), node)
    graph.inputs[_MASKED_INPUTS] = placing


def attention_node(
    op_type: str, domain: str, model: ModelSpec, inputs: Sequence[ir.Value | None]
) -> ir.Node:
    """Return a node of GroupQueryAttention or of an operator with the same inputs."""
    return ir.node(
        op_type,
        inputs,
        {"num_heads": model.num_heads, "kv_num_heads": model.num_kv_heads},
        domain=domain,
        num_outputs=3,
        name="attention",
    )


def _packed(parts: Sequence[ir.Value | None]) -> list[ir.Value | None] | None:
    """Return the operands of a packed projection if ``parts`` are exactly its split."""
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
    """Reshape [B, N, S, D] to [B, S, N D] after the node that produces ``part``."""
    node = producer(part)
    shape = ir.tensor(np.array([0, 0, -1], np.int64), name="merged_heads")
    if shape.name not in graph.initializers:
        graph.register_initializer(ir.val(shape.name, const_value=shape))
    transpose = ir.node("Transpose", [part], {"perm": (0, 2, 1, 3)})
    reshape = ir.node("Reshape", [transpose.outputs[0], graph.initializers["merged_heads"]])
    graph.insert_after(node, [transpose, reshape])
    return reshape.outputs[0]
