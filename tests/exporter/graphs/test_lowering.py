"""Lowered graphs equal the torch modules, in place and with garbage in unused cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from built_engines import (
    STRUCTURES,
    TOLERANCE,
    Session,
    build,
    decode_ragged,
    module,
    operators,
    optimised,
    tiny_spec,
)

from skipdec.engines.errors import UsageError
from skipdec.engines.manifest import EngineKind, PrecisionSpec, TensorRole
from skipdec.exporter.graphs.lowering import lowering_of


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_ragged_prefill_and_decoding_in_place_equal_the_module(
    structure: str, dtype: str, tmp_path: Path
) -> None:
    precision = PrecisionSpec(dtype=dtype)
    for actual, expected in decode_ragged(tiny_spec(structure), tmp_path, precision):
        np.testing.assert_allclose(actual, expected, atol=TOLERANCE[dtype], rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_embedding_and_head_equal_their_modules(structure: str, dtype: str, tmp_path: Path) -> None:
    model, rng = tiny_spec(structure), np.random.default_rng(0)
    precision = PrecisionSpec(dtype=dtype)
    inputs = {
        EngineKind.EMBED: {
            "input_ids": rng.integers(0, model.vocab_size, (2, 3)),
            "position_ids": np.array([[0, 1, 2], [37, 38, 39]]),
        },
        EngineKind.HEAD: {
            "hidden_states": rng.standard_normal((2, 3, model.hidden_size)).astype(dtype),
            "row_positions": np.array([5, 0, 5, 2]),
        },
    }
    for kind, arrays in inputs.items():
        built = build(kind, model, tmp_path, precision)
        arrays = {spec.name: arrays[spec.name] for spec in built.spec.inputs}
        (actual,) = Session(tmp_path, built).run(arrays).values()
        tensors = [torch.from_numpy(array) for array in arrays.values()]
        floats = [tensor.float() if tensor.is_floating_point() else tensor for tensor in tensors]
        expected = module(kind, model)(*floats).numpy()
        np.testing.assert_allclose(actual, expected, atol=TOLERANCE[dtype], rtol=0)


def test_a_lowered_layer_has_one_attention_and_inputs_named_by_role(tmp_path: Path) -> None:
    built = build(EngineKind.LAYER, tiny_spec(), tmp_path)
    graph = onnx.load(tmp_path / built.spec.graph, load_external_data=False).graph
    operators = {node.op_type for node in graph.node}
    assert "GroupQueryAttention" in operators
    assert not operators & {"TensorScatter", "Attention", "Transpose", "Split"}
    assert [value.name for value in graph.input] == [tensor.name for tensor in built.spec.inputs]
    assert built.spec.roles >= {TensorRole.SEQLENS_K, TensorRole.TOTAL_SEQUENCE_LENGTH}


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_onnx_runtime_does_not_rewrite_quantised_products(quantize: str, tmp_path: Path) -> None:
    precision = PrecisionSpec(quantize=quantize, block_size=16, accuracy_level=4)
    built = build(EngineKind.LAYER, tiny_spec(), tmp_path, precision)
    seen = operators(optimised(tmp_path / built.spec.graph, tmp_path))
    assert seen[{"int8": "MatMulInteger", "int4": "MatMulNBits"}[quantize]] == 4
    assert not {"DynamicQuantizeMatMul", "DynamicQuantizeLinear", "MatMul"} & set(seen)


@pytest.mark.parametrize("quantize", ["int4", "int8-block"])
@pytest.mark.parametrize("structure", ["pre_norm", "llama"])
def test_block_products_take_and_return_float16(
    structure: str, quantize: str, tmp_path: Path
) -> None:
    precision = PrecisionSpec(dtype="float16", quantize=quantize, block_size=16)
    built = build(EngineKind.LAYER, tiny_spec(structure), tmp_path, precision)
    graph = onnx.load(tmp_path / built.spec.graph, load_external_data=False).graph
    products = [node for node in graph.node if node.op_type == "MatMulNBits"]
    assert len(products) == 4
    made = {name for node in products for name in node.output}
    read = {name for node in products for name in node.input}
    casts = [node for node in graph.node if node.op_type == "Cast"]
    assert not any(node.input[0] in made or node.output[0] in read for node in casts)
    scales = {node.input[2] for node in products}
    types = {tensor.data_type for tensor in graph.initializer if tensor.name in scales}
    assert types == {onnx.TensorProto.FLOAT16}


def test_an_unknown_target_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        UsageError,
        match="'tpu' is unknown; allowed: onnxruntime, tensorrt, tensorrt-rtx, canonical, skipdec",
    ):
        lowering_of("tpu")
