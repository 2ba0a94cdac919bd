"""ONNX graphs whose inner tensors are marked as outputs, without their weights in memory."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
from polygraphy.backend.onnx import ModifyOutputs, OnnxFromPath

# What torch's exporter and onnx-ir call a value that has no name: it means nothing elsewhere.
_AUTOMATIC = re.compile(r"val_\d+")


def load_graph(path: Path) -> onnx.ModelProto:
    """The graph of an engine, its weights left in their file."""
    model: onnx.ModelProto = OnnxFromPath(str(path), ignore_external_data=True)()
    return model


def common_tensors(graph: onnx.ModelProto, reference: onnx.ModelProto) -> tuple[str, ...]:
    """The tensors that both graphs make under one name, in the order of ``reference``'s nodes.

    Graphs that were lowered from one canonical graph keep its names for what they still make.
    Names that were given automatically count only where the nodes are the same.
    """
    made = set(_node_outputs(graph))
    is_same = _nodes(graph) == _nodes(reference)
    return tuple(
        name
        for name in _node_outputs(reference)
        if name in made and (is_same or not _AUTOMATIC.fullmatch(name))
    )


def makers(graph: onnx.ModelProto) -> dict[str, str]:
    """What makes each tensor: its node's type and the parameters that this reads.

    E.g. ``{"matmul_3": "MatMul fc2.weight"}``.
    """
    parameters = {tensor.name for tensor in graph.graph.initializer if "." in tensor.name}
    return {
        name: " ".join((node.op_type, *(each for each in node.input if each in parameters)))
        for node in graph.graph.node
        for name in node.output
    }


def with_outputs(graph: onnx.ModelProto, names: tuple[str, ...]) -> bytes:
    """The graph, serialised, with ``names`` as its outputs; ``graph`` is not changed."""
    modified: onnx.ModelProto = ModifyOutputs(graph, outputs=list(names), copy=True)()
    content: bytes = modified.SerializeToString()
    return content


def _node_outputs(model: onnx.ModelProto) -> list[str]:
    return [name for node in model.graph.node for name in node.output if name]


def _nodes(model: onnx.ModelProto) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    return [(node.op_type, tuple(node.input), tuple(node.output)) for node in model.graph.node]
