"""Replacement of a canonical graph's TensorScatter and Attention by one operator.

GroupQueryAttention and skipdec's Attention take the same inputs: query, key and value as one packed
[B, S, (N + 2M) D] for M key heads or, if they are transformed before attention, as three tensors;
the caches; then the positions of tokens. skipdec's also takes the norms and the rotation of heads
(head_transforms.py).
GroupQueryAttention rotates 16-bit heads itself, by tables of

    cosines, sines = Cos, Sin(0 … P - 1 · inv_freq) [P, R / 2]

which have no data in the file: a session computes them once, when it folds constants. P is
max_seq_len plus the largest number of drafts per pass, because a device pads a row's last tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ...engines.constants import integer
from ...engines.manifest import ModelSpec, TensorRole
from .head_transforms import HeadTransform, take_rotation
from .lowering import attention_node, constant, consumer, producer, replace_node, replace_value

Heads = tuple[ir.Value, ir.Value, Sequence[ir.Value | None], Mapping[str, float]]
"""Query and key as the operator takes them, and its operands and attributes for positions."""

_MASKED_INPUTS = slice(3, 5)  # write_indices and attention_mask of canonical layers


def replace_attention(
    graph: ir.Graph,
    model: ModelSpec,
    operator: tuple[str, str],
    positions: Sequence[ir.Value],
    place: Callable[[ir.Value, ir.Value], Heads],
) -> None:
    """Replace everything between the input and output projections of attention by one node.

    The node is GroupQueryAttention or an operator with the same inputs.
    ``operator`` is its domain and type. ``positions`` are its inputs that replace the graph's
    write_indices and attention_mask. ``place`` removes norms and rotation from query and key
    [B, N, S, D] and returns the operands, after the positions, that make the operator do both.
    """
    attention = attention_node(graph)
    query, present_key, present_value, *_ = attention.inputs
    key, value = (producer(present).inputs[1] for present in (present_key, present_value))
    assert query is not None
    assert key is not None
    query, key, transform, attributes = place(query, key)
    parts = [query, key, value]
    operands = _packed(parts) or [_merged_heads(graph, part) for part in parts]
    merged = consumer(consumer(attention.outputs[0]).outputs[0]).outputs[0]  # Transpose, Reshape
    inputs = {value.name: value for value in graph.inputs}
    domain, op_type = operator
    node = ir.node(
        op_type,
        [*operands, inputs["past_key"], inputs["past_value"], *positions, *transform],
        {"num_heads": model.num_heads, "kv_num_heads": model.num_kv_heads, **attributes},
        domain=domain,
        num_outputs=3,
        name="attention",
    )
    _hidden_states_out, *present = graph.outputs
    for new, old in zip(node.outputs, (merged, *present), strict=True):
        replace_value(old, new)
    graph.insert_before(consumer(node.outputs[0]), node)
    graph.inputs[_MASKED_INPUTS] = positions


def divide_by_constants(graph: ir.Graph) -> None:
    """Divide [B, S, N D] into heads by constant shapes; CUDA leaves computed shapes to the CPU.

    A traced Reshape computes its shape from B and S of the hidden states, N and D.
    """
    for node in [node for node in graph if node.op_type == "Reshape"]:
        joint = None if node.inputs[1] is None else node.inputs[1].producer()
        if joint is None or joint.op_type != "Concat" or len(joint.inputs) != 4:
            continue
        sizes = [None if size is None else size.const_value for size in joint.inputs[2:]]
        if any(size is None for size in sizes):
            continue
        heads, head_dim = (int(size.numpy()[0]) for size in sizes if size is not None)
        shape = constant(graph, f"{heads}_heads", np.array([0, 0, heads, head_dim], np.int64))
        replace_node(graph, node, ir.node("Reshape", [node.inputs[0], shape]))


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
    """Return ``part`` [B, N, S, D] as [B, S, N D]: its source, or a Reshape inserted after it."""
    node = producer(part)
    if node.op_type == "Transpose" and producer(node.inputs[0]).op_type == "Reshape":
        source = producer(node.inputs[0]).inputs[0]
        assert source is not None
        return source
    merged = constant(graph, "merged_heads", np.array([0, 0, -1], np.int64))
    before = None if node.inputs[0] is None else node.inputs[0].producer()
    if node.op_type == "RMSNormalization" and before is not None and before.op_type == "Transpose":
        node.replace_input_with(0, before.inputs[0])  # heads are normalised in any order
        reshape = ir.node("Reshape", [part, merged])
        graph.insert_after(node, reshape)
        return reshape.outputs[0]
    transpose = ir.node("Transpose", [part], {"perm": (0, 2, 1, 3)})
    reshape = ir.node("Reshape", [transpose.outputs[0], merged])
    graph.insert_after(node, [transpose, reshape])
    return reshape.outputs[0]


_HEAD_MULTIPLE = 16  # of D, as the operator requires
_TABLE_MULTIPLE = 8  # of R / 2


def rotate_inside(graph: ir.Graph, model: ModelSpec, query: ir.Value, key: ir.Value) -> Heads:
    """Return the heads before rotation and its operands; heads that can't rotate inside stay."""
    before, key_before, rotation = take_rotation(query, key)
    if rotation.inv_freq is None or not _fits(model, rotation.inv_freq) or _is_float32(query):
        return query, key, (), {}
    assert query.dtype is not None
    num_positions = model.max_seq_len + integer("draft_max_tokens")
    tables = _tables(graph, num_positions, rotation, query.dtype)
    positions = next(value for value in graph.inputs if value.name == TensorRole.POSITION_IDS)
    return before, key_before, [*tables, positions], {"do_rotary": 1}


def _is_float32(value: ir.Value) -> bool:
    return value.dtype == ir.DataType.FLOAT


def _fits(model: ModelSpec, inv_freq: ir.Value) -> bool:
    assert inv_freq.shape is not None
    (half,) = inv_freq.shape.numpy()
    return model.head_dim % _HEAD_MULTIPLE == 0 and half % _TABLE_MULTIPLE == 0


def _tables(
    graph: ir.Graph, positions: int, rotation: HeadTransform, dtype: ir.DataType
) -> list[ir.Value]:
    """Insert nodes for cosines and sines at positions from 0 on."""
    bounds = [
        constant(graph, f"rotation.{name}", np.array(value, np.float32))
        for name, value in {"first": 0, "end": positions, "step": 1}.items()
    ]
    column = constant(graph, "rotation.column", np.array([1], np.int64))
    nodes = [ir.node("Range", bounds)]
    nodes.append(ir.node("Unsqueeze", [nodes[-1].outputs[0], column]))
    nodes.append(ir.node("Mul", [nodes[-1].outputs[0], rotation.inv_freq]))
    angles, tables = nodes[-1].outputs[0], []
    for function in ("Cos", "Sin"):
        nodes.append(ir.node(function, [angles]))
        if rotation.rotary_scale != 1:
            scale = constant(graph, "rotation.scale", np.array(rotation.rotary_scale, np.float32))
            nodes.append(ir.node("Mul", [nodes[-1].outputs[0], scale]))
        nodes.append(ir.node("Cast", [nodes[-1].outputs[0]], {"to": dtype}))
        tables.append(nodes[-1].outputs[0])
    graph.insert_before(graph[0], nodes)
    return tables
