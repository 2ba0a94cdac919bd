"""Joins layer engines into one ONNX graph: the yardstick of what stitching costs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import onnx

from ..engines.bundle import EngineBundle
from ..engines.manifest import EngineSpec, TensorRole

MERGED_NAME = "merged.onnx"

# Inputs that mean the same to every layer, so that one input of the merged graph serves all.
_SHARED = frozenset(
    {
        TensorRole.SEQLENS_K,
        TensorRole.TOTAL_SEQUENCE_LENGTH,
        TensorRole.WRITE_INDICES,
        TensorRole.ATTENTION_MASK,
    }
)


def merge_engines(
    bundle: EngineBundle, engines: Sequence[EngineSpec], directory: Path
) -> onnx.ModelProto:
    """Write ``engines``, each feeding the next, to ``directory / "merged.onnx"``.

    Tensors are named as ``merged_name`` says; hidden_states of the first engine and
    hidden_states_out of the last are the graph's. Weights are hard links to the bundle's, since
    ONNX Runtime reads them only from the graph's own directory; copies on another file system.
    Returns the model, without weights.
    """
    merged = onnx.ModelProto()
    for position, engine in enumerate(engines):
        model = onnx.load(bundle.file(engine.graph), load_external_data=False)
        names = _new_names(model.graph, engines, position)
        if position == 0:
            merged.ir_version = model.ir_version
            merged.opset_import.extend(model.opset_import)
            merged.graph.name = "merged"
        last = position == len(engines) - 1
        chained = None if last else engine.tensor(TensorRole.HIDDEN_STATES_OUT).name
        _append(merged.graph, model.graph, names, chained)
        for weights in engine.weights:
            _link(bundle.file(weights), directory / Path(weights).name)
    onnx.save(merged, directory / MERGED_NAME)
    return merged


def merged_name(engines: Sequence[EngineSpec], position: int, role: TensorRole) -> str:
    """Return what the tensor of ``role`` of ``engines[position]`` is called in the merged graph.

    ``layer_002/past_key`` for the engine's own; shared inputs keep their names; hidden_states is
    the hidden_states_out of the engine before.
    """
    engine = engines[position]
    if role in _SHARED:
        return engine.tensor(role).name
    if role == TensorRole.HIDDEN_STATES and position > 0:
        return merged_name(engines, position - 1, TensorRole.HIDDEN_STATES_OUT)
    return f"{engine.name}/{engine.tensor(role).name}"


def _new_names(
    graph: onnx.GraphProto, engines: Sequence[EngineSpec], position: int
) -> dict[str, str]:
    """Old name → new name of every tensor of one engine's graph; "" (no tensor) stays."""
    engine = engines[position]
    tensors = [name for node in graph.node for name in (*node.input, *node.output)]
    names = {name: f"{engine.name}/{name}" if name else "" for name in tensors}
    for tensor in (*engine.inputs, *engine.outputs):
        names[tensor.name] = merged_name(engines, position, tensor.role)
    return names


def _append(
    merged: onnx.GraphProto, graph: onnx.GraphProto, names: dict[str, str], chained: str | None
) -> None:
    """Append one engine's nodes, weights and own inputs and outputs under their new names.

    ``chained``: the output that only the next engine reads.
    """
    made = {output for node in merged.node for output in node.output}
    known = {value.name for value in merged.input}
    for node in graph.node:
        copy = merged.node.add()
        copy.CopyFrom(node)
        copy.name = f"{names[node.output[0]]}:{node.op_type}"
        copy.input[:] = [names[name] for name in node.input]
        copy.output[:] = [names[name] for name in node.output]
    for tensor in graph.initializer:
        merged.initializer.add().CopyFrom(tensor)
        merged.initializer[-1].name = names[tensor.name]
    for value in graph.input:
        if names[value.name] not in made | known:
            merged.input.add().CopyFrom(value)
            merged.input[-1].name = names[value.name]
    for value in graph.output:
        if value.name != chained:
            merged.output.add().CopyFrom(value)
            merged.output[-1].name = names[value.name]


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copyfile(source, target)
