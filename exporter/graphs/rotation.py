"""Rotation of 16-bit heads inside ONNX Runtime's GroupQueryAttention.

    cosines, sines = Cos, Sin(0 … max_seq_len - 1 · inv_freq) [max_seq_len, R / 2]

The tables have no data in the file: a session computes them once, when it folds constants. Each
token is rotated at its position_ids. A packed product of query, key and value needs no Split.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ...engines.manifest import ModelSpec, TensorRole
from .attention import Heads
from .lowering import constant
from .placing import Placing, take_rotation

_HEAD_MULTIPLE = 16  # of D, as the operator requires
_TABLE_MULTIPLE = 8  # of R / 2


def rotate_inside(graph: ir.Graph, model: ModelSpec, query: ir.Value, key: ir.Value) -> Heads:
    """Return the heads before their rotation with its operands, or as they are if none fits."""
    before, key_before, rotation = take_rotation(query, key)
    if rotation.inv_freq is None or not _fits(model, rotation.inv_freq) or _is_float32(query):
        return query, key, (), {}
    assert query.dtype is not None
    tables = _tables(graph, model.max_seq_len, rotation, query.dtype)
    positions = next(value for value in graph.inputs if value.name == TensorRole.POSITION_IDS)
    return before, key_before, [*tables, positions], {"do_rotary": 1}


def _is_float32(value: ir.Value) -> bool:
    return value.dtype == ir.DataType.FLOAT


def _fits(model: ModelSpec, inv_freq: ir.Value) -> bool:
    assert inv_freq.shape is not None
    (half,) = inv_freq.shape.numpy()
    return model.head_dim % _HEAD_MULTIPLE == 0 and half % _TABLE_MULTIPLE == 0


def _tables(
    graph: ir.Graph, positions: int, rotation: Placing, dtype: ir.DataType
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
