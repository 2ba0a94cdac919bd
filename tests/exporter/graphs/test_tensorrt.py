"""The real TensorRT builder accepts the graphs, and they compute the right values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from built_engines import (
    RandomReader,
    call_layer,
    module,
    position_ids,
    tiny_spec,
)
from built_engines import build as build_engine_files
from canonical_graphs import canonical_graph
from plan_requests import (
    CAPACITY,
    FP16,
    fusible_spec,
    lowered_engine,
    needs_tensorrt_rtx,
    plan_request,
)

from skipdec.engines.errors import UnsupportedModelError, VerificationError
from skipdec.engines.manifest import EngineKind, ModelSpec, PrecisionSpec
from skipdec.engines.trt.build import PlanReport, build_plan
from skipdec.exporter.architecture.architecture import engine_parameters, quantized_parameters
from skipdec.exporter.graphs.dtypes import check_dtypes
from skipdec.exporter.graphs.tensorrt import DECOMPOSABLE, check_model, lower, with_capacity
from skipdec.exporter.quantization.linear import weight_quantizer

RANGES = "0" * 64  # a digest
QUANTIZED = {
    "int8": {"quantize": "int8"},
    "int8-static": {"quantize": "int8", "activation_ranges": RANGES},
    "int8-block": {"quantize": "int8-block", "block_size": 16},
    "int4": {"quantize": "int4", "block_size": 16},
    "fp8": {"quantize": "fp8", "activation_ranges": RANGES},
}
FLOATS = ("float16", "float32")
LAYERS = {"KV_CACHE_UPDATE": 2, "ATTENTION_INPUT": 1}


def quantized(name: str, dtype: str) -> PrecisionSpec:
    choice = QUANTIZED[name]
    head = {"head_quantize": choice["quantize"]}
    return PrecisionSpec(dtype=dtype, **choice, **head)


def build(
    kind: EngineKind, model: ModelSpec, precision: PrecisionSpec, directory: Path
) -> PlanReport:
    """Build a plan; ``build_plan`` checks IO names, dtypes and layer counts."""
    lowered = lowered_engine(kind, model, precision, directory)
    output = directory / "engine.plan"
    report = build_plan(plan_request(lowered, kind, directory), output)
    assert report.plan_size == output.stat().st_size > 0
    return report


# Exports build the engines left out here, those of OPT in float16 and bfloat16
# (pipeline/test_tensorrt_export.py). "untied" differs only in the head.
@needs_tensorrt_rtx
@pytest.mark.parametrize(
    ("structure", "dtype"),
    [
        ("pre_norm", "float32"),
        *((name, dtype) for name in ("post_norm", "no_bias", "llama") for dtype in FLOATS),
    ],
)
def test_the_builder_accepts_a_layer_of_every_structure(
    structure: str, dtype: str, tmp_path: Path
) -> None:
    precision = PrecisionSpec(dtype=dtype)
    report = build(EngineKind.LAYER, fusible_spec(structure), precision, tmp_path)
    assert LAYERS.items() <= report.layer_counts.items()


@needs_tensorrt_rtx
@pytest.mark.parametrize(
    ("kind", "structure", "dtype"),
    [
        (EngineKind.EMBED, "post_norm", "bfloat16"),
        (EngineKind.HEAD, "post_norm", "float16"),
        (EngineKind.HEAD, "no_bias", "float32"),
        (EngineKind.EMBED, "llama", "float16"),
        (EngineKind.HEAD, "llama", "float16"),
    ],
)
def test_the_builder_accepts_the_other_engines(
    kind: EngineKind, structure: str, dtype: str, tmp_path: Path
) -> None:
    precision = PrecisionSpec(dtype=dtype)
    build(kind, fusible_spec(structure), precision, tmp_path)


@needs_tensorrt_rtx
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, "float16") for name in QUANTIZED),
        ("int4", "bfloat16"),
        ("int8-static", "float32"),
    ],
)
def test_the_builder_accepts_quantised_layers_with_every_quantisation(
    name: str, dtype: str, tmp_path: Path
) -> None:
    precision = quantized(name, dtype)
    report = build(EngineKind.LAYER, fusible_spec(), precision, tmp_path)
    assert LAYERS.items() <= report.layer_counts.items()
    products = len(quantized_parameters(EngineKind.LAYER, fusible_spec()))
    activations = products if precision.activation_ranges else 0
    assert report.layer_counts["DEQUANTIZE"] == products + activations
    assert report.layer_counts.get("QUANTIZE", 0) == activations


@needs_tensorrt_rtx
@pytest.mark.parametrize("name", ["int8", "int4", "fp8"])
def test_the_builder_accepts_quantised_heads_of_an_odd_vocabulary(
    name: str, tmp_path: Path
) -> None:
    report = build(EngineKind.HEAD, fusible_spec(), quantized(name, "float16"), tmp_path)
    assert report.layer_counts["DEQUANTIZE"] == (2 if name == "fp8" else 1)


@pytest.mark.parametrize("name", ["none", *QUANTIZED])
@pytest.mark.parametrize("structure", ["pre_norm", "post_norm", "llama"])
def test_a_lowered_layer_equals_a_module_with_dequantised_weights(
    structure: str, name: str, tmp_path: Path
) -> None:
    """Compare the graph on ONNX Runtime with the torch module on dequantised weights."""
    model = fusible_spec(structure)
    precision = PrecisionSpec() if name == "none" else quantized(name, "float32")
    lowered = lowered_engine(EngineKind.LAYER, model, precision, tmp_path)
    rng = np.random.default_rng(0)
    cache = rng.standard_normal((2, 2, model.num_kv_heads, CAPACITY, model.head_dim), np.float32)
    inputs = {
        "hidden_states": rng.standard_normal((2, 3, model.hidden_size), np.float32),
        "past_key": cache[0],
        "past_value": cache[1],
        "write_indices": np.array([4, 0]),
        "attention_mask": np.tri(CAPACITY, dtype=bool)[None, None, [[4, 5, 6], [0, 1, 2]]][0],
    }
    inputs["attention_mask"] = inputs["attention_mask"].transpose(1, 0, 2, 3)
    reference = dequantized_module(model, precision)
    with torch.no_grad():
        expected = call_layer(reference, *(torch.from_numpy(array) for array in inputs.values()))
    if structure == "llama":
        inputs["position_ids"] = position_ids(inputs["write_indices"], 3)
    actual = run(lowered.graph, tmp_path, inputs)
    # Where sums differ in their last bit, an activation may round to the next code.
    tolerance = 5e-2 if precision.activation_ranges else 2e-5
    for seen, wanted in zip(actual, expected, strict=True):
        np.testing.assert_allclose(seen, wanted.numpy(), atol=tolerance, rtol=tolerance)


def run(graph: ir.Model, directory: Path, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return outputs of a lowered graph on ONNX Runtime, which lacks TensorRT's attribute."""
    graph = with_capacity(graph, CAPACITY)
    for node in graph.graph:
        node.attributes.pop(DECOMPOSABLE, None)
    path = directory / "graph.onnx"
    onnx.save(ir.to_proto(graph), path)
    options = onnxruntime.SessionOptions()  # optimisation would fuse products
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def dequantized_module(model: ModelSpec, precision: PrecisionSpec) -> torch.nn.Module:
    """Return the module with dequantised weights and quantised inputs of range 4."""
    reference = module(EngineKind.LAYER, model)

    def int8(_: torch.nn.Module, inputs: tuple[torch.Tensor]) -> torch.Tensor:
        return (inputs[0] / (4 / 127)).round().clamp(-128, 127) * (4 / 127)

    def fp8(_: torch.nn.Module, inputs: tuple[torch.Tensor]) -> torch.Tensor:
        scaled = (inputs[0] / (4 / 448)).clamp(-448, 448)
        return scaled.to(torch.float8_e4m3fn).float() * (4 / 448)

    if precision.activation_ranges:
        for name in quantized_parameters(EngineKind.LAYER, model):
            hook = fp8 if precision.quantize == "fp8" else int8
            reference.get_submodule(name.removesuffix(".weight")).register_forward_pre_hook(hook)
    quantizer = weight_quantizer(EngineKind.LAYER, precision)
    if quantizer is not None:
        for parameter in engine_parameters(EngineKind.LAYER, model, 0):
            if parameter.is_product:
                weight = quantizer.dequantized(parameter.load(RandomReader(model)))
                reference.get_parameter(parameter.name).data = torch.from_numpy(weight)
    return reference


def test_only_float32_attention_may_be_decomposed() -> None:
    for dtype, marked in (("float32", True), ("float16", False), ("bfloat16", False)):
        precision = PrecisionSpec(dtype=dtype)
        graph = canonical_graph(EngineKind.LAYER, fusible_spec(), precision.dtype)
        lowered = lower(graph, EngineKind.LAYER, fusible_spec(), precision).graph
        (attention,) = (node for node in lowered.graph if node.op_type == "Attention")
        assert (DECOMPOSABLE in attention.attributes) == marked
        assert all(DECOMPOSABLE not in node.attributes for node in graph.graph)


def test_a_capacity_is_set_on_a_copy() -> None:
    graph = canonical_graph(EngineKind.LAYER, fusible_spec(), "float16")
    sized = with_capacity(graph, 48)
    values = {value.name: value for value in (*sized.graph.inputs, *sized.graph.outputs)}
    assert [str(size) for size in values["past_key"].shape] == ["B", "4", "48", "16"]
    assert [str(size) for size in values["present_value"].shape] == ["B", "4", "48", "16"]
    assert [str(size) for size in values["attention_mask"].shape] == ["B", "1", "S", "48"]
    assert "T" in [str(size) for size in graph.graph.inputs[1].shape]


def test_attention_inputs_that_the_parser_silently_drops_are_refused() -> None:
    """The mask also uses these lengths, so the parser does not warn of an unused input."""
    graph = canonical_graph(EngineKind.LAYER, fusible_spec(), "float16").clone()
    (attention,) = (node for node in graph.graph if node.op_type == "Attention")
    lengths = next(value for value in graph.graph.inputs if value.name == "write_indices")
    attention.resize_inputs(7)
    attention.replace_input_with(6, lengths)
    with pytest.raises(
        UnsupportedModelError, match=r"takes write_indices besides .* silently drops"
    ):
        lower(graph, EngineKind.LAYER, fusible_spec(), FP16)


def test_a_model_without_kernels_is_refused_with_every_reason() -> None:
    model = tiny_spec(num_heads=2, hidden_size=24)
    precision = PrecisionSpec(dtype="bfloat16", quantize="int4", block_size=16)
    with pytest.raises(UnsupportedModelError) as raised:
        check_model(model, precision)
    heads, number, *blocks = raised.value.problems
    assert heads.startswith("heads are 12 wide; TensorRT fuses bfloat16 attention for multiples")
    assert number.startswith("has 2 heads")
    assert [text.split()[0] for text in blocks] == [
        "self_attn.qkv_proj.weight",
        "self_attn.out_proj.weight",
        "fc1.weight",
    ]


@pytest.mark.parametrize(
    ("gpu", "refused"),
    [("7.5", ["bfloat16", "fp8"]), ("8.6", ["fp8"]), ("8.9", []), ("12.0", []), (None, [])],
)
def test_formats_that_a_gpu_does_not_support_are_refused(
    gpu: str | None, refused: list[str]
) -> None:
    precision = quantized("fp8", "bfloat16")
    if not refused:
        check_model(fusible_spec(), precision, gpu)
        return
    with pytest.raises(UnsupportedModelError) as raised:
        check_model(fusible_spec(), precision, gpu)
    assert [problem.split()[0] for problem in raised.value.problems] == refused


@pytest.mark.parametrize("name", ["int8", "int8-block", "int4"])
def test_a_written_graph_has_the_requested_dtypes(name: str, tmp_path: Path) -> None:
    """``build_engine`` checks inputs, outputs and weights of the written graph."""
    precision = quantized(name, "bfloat16")
    built = build_engine_files(
        EngineKind.LAYER, fusible_spec(), tmp_path, precision, "tensorrt-rtx"
    )
    graph = onnx.load(tmp_path / built.spec.graph, load_external_data=False).graph
    dtypes = {tensor.name: tensor.data_type for tensor in graph.initializer}
    code = onnx.TensorProto.INT4 if name == "int4" else onnx.TensorProto.INT8
    assert dtypes["fc1.weight.quantized"] == code
    assert dtypes["fc1.weight.scale"] == dtypes["fc1.bias"] == onnx.TensorProto.BFLOAT16
    assert dtypes["final_layer_norm.weight"] == onnx.TensorProto.FLOAT
    requested = precision.model_copy(update={"quantize": "none"})
    with pytest.raises(VerificationError, match=r"fc1\.weight is missing; requested: bfloat16"):
        check_dtypes(graph, built.spec, fusible_spec(), requested, "tensorrt-rtx")
