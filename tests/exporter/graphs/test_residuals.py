"""Layers of 16 bits compute each norm and the residual sum before it in one node."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from built_engines import build, operators, optimised, tiny_spec

from skipdec.engines.manifest import EngineKind, FloatType, PrecisionSpec


def layer_graph(structure: str, directory: Path, dtype: FloatType = "float16") -> onnx.GraphProto:
    """Return a layer's graph as optimised for a CPU, with constants folded."""
    built = build(EngineKind.LAYER, tiny_spec(structure), directory, PrecisionSpec(dtype=dtype))
    return optimised(directory / built.spec.graph, directory)


def test_a_layer_of_opt_in_float16_has_ten_nodes(tmp_path: Path) -> None:
    assert operators(layer_graph("pre_norm", tmp_path)) == {
        "MatMul": 4,
        "Add": 2,  # bias of query, key and value; last residual sum
        "GroupQueryAttention": 1,  # three kernels on CUDA
        "SkipLayerNormalization": 2,
        "Max": 1,
    }


@pytest.mark.parametrize(
    ("structure", "joint"),
    [
        ("post_norm", "SkipLayerNormalization"),
        ("no_bias", "SkipLayerNormalization"),
        ("llama", "SkipSimplifiedLayerNormalization"),
    ],
)
def test_norms_after_residual_sums_are_joined(structure: str, joint: str, tmp_path: Path) -> None:
    assert operators(layer_graph(structure, tmp_path))[joint] == 2


def test_a_layer_in_float32_keeps_sums_and_norms_apart(tmp_path: Path) -> None:
    seen = operators(layer_graph("pre_norm", tmp_path, "float32"))
    assert not [name for name in seen if name.startswith("Skip")]


@pytest.mark.parametrize("structure", ["pre_norm", "no_bias", "llama"])
def test_a_cpu_computes_joined_norms_between_products_in_float32(
    structure: str, tmp_path: Path
) -> None:
    graph = layer_graph(structure, tmp_path)
    _, norm = (node for node in graph.node if node.op_type.startswith("Skip"))
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    assert types[norm.input[2]] == onnx.TensorProto.FLOAT
