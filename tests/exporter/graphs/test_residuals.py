"""Layers of 16 bits compute each norm in one node, with the residual sum before it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import onnxruntime
import pytest
from built_engines import build, tiny_spec

from skipdec.engines.manifest import EngineKind, FloatType, PrecisionSpec


def layer_graph(structure: str, directory: Path, dtype: FloatType = "float16") -> Path:
    built = build(EngineKind.LAYER, tiny_spec(structure), directory, PrecisionSpec(dtype=dtype))
    return directory / built.spec.graph


def operators(path: Path) -> Counter[str]:
    graph = onnx.load(path, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    return Counter(node.op_type for node in graph.node if node.input[0] not in weights)


def test_a_layer_in_float16_has_no_cast_and_two_residual_sums_in_norms(tmp_path: Path) -> None:
    assert operators(layer_graph("pre_norm", tmp_path)) == {
        "LayerNormalization": 1,
        "MatMul": 4,
        "Add": 4,  # the biases of three products, and the last residual sum
        "GroupQueryAttention": 1,
        "SkipLayerNormalization": 1,
        "Relu": 1,
    }


@pytest.mark.parametrize(
    ("structure", "joint", "count"),
    [
        ("post_norm", "SkipLayerNormalization", 2),
        ("no_bias", "SkipLayerNormalization", 1),
        ("llama", "SkipSimplifiedLayerNormalization", 1),
    ],
)
def test_every_norm_behind_a_residual_sum_is_joined_with_it(
    structure: str, joint: str, count: int, tmp_path: Path
) -> None:
    assert operators(layer_graph(structure, tmp_path))[joint] == count


def test_a_layer_in_float32_keeps_sums_and_norms_apart(tmp_path: Path) -> None:
    assert not {
        name
        for name in operators(layer_graph("pre_norm", tmp_path, "float32"))
        if name.startswith("Skip")
    }


@pytest.mark.parametrize("structure", ["pre_norm", "no_bias", "llama"])
def test_a_cpu_computes_joint_norms_between_products_in_float32(
    structure: str, tmp_path: Path
) -> None:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 3  # it says that the file is for this machine
    onnxruntime.InferenceSession(
        layer_graph(structure, tmp_path), options, providers=["CPUExecutionProvider"]
    )
    graph = onnx.load(tmp_path / "optimised.onnx", load_external_data=False).graph
    (norm,) = (node for node in graph.node if node.op_type.startswith("Skip"))
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    assert types[norm.input[2]] == onnx.TensorProto.FLOAT
