"""Engine files are reproducible, correctly described, as configured, and need little memory."""

from __future__ import annotations

import hashlib
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from built_engines import Array, RandomReader, build, tiny_spec
from canonical_graphs import canonical_graph

from skipdec.engines.errors import CheckpointError, VerificationError
from skipdec.engines.manifest import EngineKind, ModelSpec, PrecisionSpec
from skipdec.engines.memory import WEIGHTS_ALIGNMENT
from skipdec.exporter.building.engine import build_engine
from skipdec.exporter.graphs.dtypes import check_dtypes

FP16 = PrecisionSpec(dtype="float16")
INT8 = PrecisionSpec(quantize="int8", head_quantize="int8")
INT4 = PrecisionSpec(quantize="int4", head_quantize="int4", block_size=16, accuracy_level=4)


@pytest.mark.parametrize("precision", [PrecisionSpec(), INT8, INT4])
@pytest.mark.parametrize("kind", EngineKind)
def test_records_and_step_bytes_describe_the_files(
    kind: EngineKind, precision: PrecisionSpec, tmp_path: Path
) -> None:
    model = tiny_spec("post_norm")
    built = build(kind, model, tmp_path, precision)
    for record in built.files:
        content = (tmp_path / record.path).read_bytes()
        assert (record.size, record.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert {built.spec.graph, *built.spec.weights} == {record.path for record in built.files}
    stored = onnx.load(tmp_path / built.spec.graph).graph.initializer
    weights = {tensor.name: len(tensor.raw_data) for tensor in stored if "." in tensor.name}
    if kind is EngineKind.EMBED:  # one row of each table
        weights["embed_tokens.weight"] = 4 * model.word_embed_proj_dim
        weights["embed_positions.weight"] = 4 * model.hidden_size
    assert built.spec.step_bytes == sum(weights.values())


def test_weights_start_at_aligned_offsets(tmp_path: Path) -> None:
    built = build(EngineKind.LAYER, tiny_spec(), tmp_path)
    graph = onnx.load(tmp_path / built.spec.graph, load_external_data=False).graph
    offsets = [
        int(entry.value)
        for tensor in graph.initializer
        for entry in tensor.external_data
        if entry.key == "offset"
    ]
    assert len(offsets) == 12
    assert all(offset % WEIGHTS_ALIGNMENT == 0 for offset in offsets)


@pytest.mark.parametrize("precision", [PrecisionSpec(), INT8, INT4])
def test_the_same_input_gives_the_same_bytes(precision: PrecisionSpec, tmp_path: Path) -> None:
    first, second = (
        build(EngineKind.LAYER, tiny_spec(), tmp_path / name, precision) for name in "ab"
    )
    assert first.model_dump() == second.model_dump()


def test_float_weights_are_stored_unchanged(tmp_path: Path) -> None:
    model = tiny_spec()
    built = build(EngineKind.LAYER, model, tmp_path)
    tensors = {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in onnx.load(tmp_path / built.spec.graph).graph.initializer
    }
    stored = RandomReader(model).read("decoder.layers.0.fc1.weight")
    np.testing.assert_array_equal(tensors["fc1.weight"], stored.T)


def test_building_replaces_files_and_never_writes_into_them(tmp_path: Path) -> None:
    built = build(EngineKind.HEAD, tiny_spec(), tmp_path)
    mapped = np.memmap(tmp_path / built.spec.weights[0], np.uint8, "r")
    before = mapped.copy()
    build(EngineKind.HEAD, tiny_spec(), tmp_path, INT8)
    np.testing.assert_array_equal(mapped, before)


def test_a_canonical_engine_keeps_float_weights(tmp_path: Path) -> None:
    built = build(EngineKind.LAYER, tiny_spec(), tmp_path, INT8, target="canonical")
    assert built.spec.graph == "engines/canonical/layer_000.onnx"
    onnx.checker.check_model(tmp_path / built.spec.graph)


@pytest.mark.parametrize(
    ("requested", "complaint"),
    [
        (PrecisionSpec(dtype="float16"), "weight fc1.weight is float32; requested: float16"),
        (INT8, "weight fc1.weight is float32; requested: nothing"),
        (INT8, "weight fc2.weight.quantized is missing; requested: int8"),
    ],
)
def test_a_graph_with_other_dtypes_than_requested_is_refused_by_name(
    requested: PrecisionSpec, complaint: str, tmp_path: Path
) -> None:
    built = build(EngineKind.LAYER, tiny_spec(), tmp_path)
    graph = onnx.load(tmp_path / built.spec.graph, load_external_data=False).graph
    with pytest.raises(VerificationError) as raised:
        check_dtypes(graph, built.spec, tiny_spec(), requested, "onnxruntime")
    assert complaint in raised.value.problems


@pytest.mark.parametrize(
    ("precision", "most"),
    [(PrecisionSpec(dtype="float16"), 1.4), (INT8, 1.6), (INT4.model_copy(), 1.6)],
)
def test_peak_memory_is_one_weight_and_its_quantised_copy(
    precision: PrecisionSpec, most: float, tmp_path: Path
) -> None:
    """``most`` is the peak relative to the largest weight (packed qkv: 48 MiB of float32)."""
    model = tiny_spec(hidden_size=2048, ffn_dim=2048, num_heads=16)
    graph = canonical_graph(EngineKind.LAYER, model, precision.dtype)
    reader = RandomReader(model)
    tracemalloc.start()
    try:
        build_engine(graph, EngineKind.LAYER, 0, model, precision, "onnxruntime", reader, tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < most * 4 * 3 * 2048 * 2048 + (1 << 25)


class Outlier(RandomReader):
    """Has one given value in the embeddings and in each second feed-forward product."""

    def __init__(self, model: ModelSpec, value: float) -> None:
        super().__init__(model)
        self._value = value

    def read(self, name: str) -> Array:
        array = super().read(name)
        if name.endswith(("fc2.weight", "embed_tokens.weight")):
            array[3, 5] = self._value
        return array


@pytest.mark.parametrize(
    ("target", "precision"),
    [
        ("onnxruntime", PrecisionSpec(dtype="float16")),
        ("skipdec", PrecisionSpec(dtype="float16")),
    ],
)
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (
            -1e6,
            "has 1e+06 as its largest magnitude; allowed: up to 65504, as float16 holds; export "
            "with --dtype bfloat16 or float32",
        ),
        (np.nan, "has NaN or infinity; export a checkpoint without them"),
    ],
)
def test_a_weight_beyond_float16_is_named_with_its_magnitude(
    value: float, problem: str, target: str, precision: PrecisionSpec, tmp_path: Path
) -> None:
    model, kind = tiny_spec(), EngineKind.LAYER
    graph = canonical_graph(kind, model, "float32" if target == "skipdec" else precision.dtype)
    reader = Outlier(model, value)
    with pytest.raises(CheckpointError) as caught:
        build_engine(graph, kind, 0, model, precision, target, reader, tmp_path)
    assert str(caught.value) == f"decoder.layers.0.fc2.weight | {problem}"


class Broken(RandomReader):
    """Has an infinite value in one tensor."""

    def __init__(self, model: ModelSpec, name: str) -> None:
        super().__init__(model)
        self._name = name

    def read(self, name: str) -> Array:
        array = super().read(name)
        if name == self._name:
            array[3] = np.inf
        return array


@pytest.mark.parametrize("target", ["canonical", "onnxruntime", "skipdec"])
@pytest.mark.parametrize("part", ["fc1.bias", "final_layer_norm.weight", "fc2.weight"])
def test_a_non_finite_tensor_is_named_in_float32(part: str, target: str, tmp_path: Path) -> None:
    model, kind, name = tiny_spec(), EngineKind.LAYER, f"decoder.layers.0.{part}"
    graph = canonical_graph(kind, model, "float32")
    with pytest.raises(CheckpointError) as caught:
        build_engine(graph, kind, 0, model, PrecisionSpec(), target, Broken(model, name), tmp_path)
    assert str(caught.value).startswith(f"{name} | has NaN or infinity")


def test_a_product_with_a_factor_that_exceeds_float16_is_named(tmp_path: Path) -> None:
    model, kind, precision = tiny_spec("llama", embedding_multiplier=12.0), EngineKind.EMBED, FP16
    reader = Outlier(model, 6000)
    graph = canonical_graph(kind, model, "float16")
    with pytest.raises(CheckpointError) as caught:
        build_engine(graph, kind, None, model, precision, "onnxruntime", reader, tmp_path)
    assert "has 72000 as its largest magnitude, by the factors of config.json" in str(caught.value)
    assert "export with --dtype bfloat16 or float32" in str(caught.value)
