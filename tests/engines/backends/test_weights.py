"""Weights copied to process memory give the same tokens, whatever happens to the files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from fixture_types import Exported
from mutations import copy_bundle

from skipdec.engines.backends.ort import OrtBackend
from skipdec.engines.backends.session import open_backend
from skipdec.engines.backends.weights import external_tensors
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.errors import BundleError, UsageError
from skipdec.engines.kernels.library import find_library
from skipdec.runtime.generator import Generator
from skipdec.runtime.tokens.sampling import SamplingParams

PROMPTS = [[5, 6, 7, 8, 9], [11, 12]]
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
WITH_KERNELS = pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")


@pytest.fixture
def bundle(exported: Exported, tmp_path: Path) -> EngineBundle:
    """Return a private bundle whose files are hashed by each loader."""
    path = copy_bundle(exported("pre_norm", quantize="int8"), tmp_path / "bundle")
    bundle = EngineBundle.open(path)
    manifest = bundle.manifest.model_copy(update={"kernels": "skipdec"})
    return replace(bundle, manifest=manifest, hashes_weights=True)


def tokens_of(generator: Generator) -> list[tuple[int, ...]]:
    outputs = generator.generate(PROMPTS, GREEDY)
    return [tuple(output.outputs[0].token_ids) for output in outputs]


@WITH_KERNELS
def test_copied_weights_outlive_their_files(bundle: EngineBundle) -> None:
    with Generator(bundle, OrtBackend()) as generator:
        mapped = tokens_of(generator)
    with Generator(bundle, OrtBackend(weights="copied")) as generator:
        for engine in (*bundle.manifest.layers, bundle.manifest.head):
            for path in engine.weights:
                file = bundle.path / path
                file.write_bytes(bytes(file.stat().st_size))
                file.unlink()
        assert tokens_of(generator) == mapped


@WITH_KERNELS
@pytest.mark.parametrize("name", ["layer_001", "embed"])
def test_weights_are_hashed_while_copied(bundle: EngineBundle, name: str) -> None:
    engine = next(engine for engine in bundle.manifest.engines if engine.name == name)
    path = bundle.path / engine.weights[0]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(BundleError, match=rf"{engine.weights[0]}: has SHA-256 .*; expected"):
        Generator(bundle, OrtBackend(weights="copied"))
    Generator(replace(bundle, hashes_weights=False), OrtBackend(weights="copied")).close()


@WITH_KERNELS
def test_a_truncated_weights_file_is_refused(bundle: EngineBundle) -> None:
    path = bundle.path / bundle.manifest.layers[0].weights[0]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BundleError, match=r"has .* bytes; expected"):
        Generator(bundle, OrtBackend(weights="copied"))


def test_weights_are_not_copied_for_onnx_runtimes_operators(bundle: EngineBundle) -> None:
    bundle = replace(bundle, manifest=bundle.manifest.model_copy(update={"kernels": None}))
    with pytest.raises(UsageError, match="copy weights into their own layout"):
        Generator(bundle, OrtBackend(weights="copied"))


@pytest.mark.parametrize(
    ("device", "weights", "problem"),
    [
        ("cpu", "huge", "is 'huge'; allowed: 'mapped', 'copied'"),
        ("rehearsal", "copied", "engines run on rehearsal; leave it out"),
    ],
)
def test_unsupported_places_of_weights_are_refused(device: str, weights: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        open_backend("onnxruntime", device=device, weights=weights)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"quantize": "int8"}, {"dtype": "float16"}])
def test_external_tensors_are_found_where_onnx_finds_them(
    exported: Exported, options: dict[str, str]
) -> None:
    bundle = EngineBundle.open(exported("pre_norm", **options))
    for engine in bundle.manifest.engines:
        path = bundle.path / engine.graph
        files = {file: np.fromfile(bundle.path / file, np.uint8) for file in engine.weights}
        found = {tensor.name: tensor for tensor in external_tensors(memoryview(path.read_bytes()))}
        model = onnx.load(path, load_external_data=False)
        external = [tensor for tensor in model.graph.initializer if tensor.external_data]
        assert sorted(found) == sorted(tensor.name for tensor in external)
        for tensor in external:
            (content,) = files.values()
            expected = onnx.numpy_helper.to_array(tensor, str(path.parent))
            assert found[tensor.name].view(content).tobytes() == expected.tobytes()
            assert found[tensor.name].view(content).shape == expected.shape


@pytest.mark.parametrize(
    "graph", [b"\x3a\xff", b"\x3a\x02\x2a\x80", b"\x0b", b"\x3a\x04\x2a\x02\x6a\x00"]
)
def test_a_truncated_graph_is_refused(graph: bytes) -> None:
    with pytest.raises((ValueError, LookupError)):
        list(external_tensors(memoryview(graph)))


@WITH_KERNELS
def test_a_graph_that_names_a_weight_twice_is_refused(bundle: EngineBundle) -> None:
    path = bundle.path / bundle.manifest.layers[0].graph
    model = onnx.load(path, load_external_data=False)
    weights = model.graph.initializer
    weights.append(next(tensor for tensor in weights if tensor.external_data))
    path.write_bytes(model.SerializeToString())
    (record,) = (one for one in bundle.manifest.files if one.path.endswith("layer_000.onnx"))
    object.__setattr__(record, "size", path.stat().st_size)
    with pytest.raises(BundleError, match=r"(?s)layer_000 .*export the model again"):
        OrtBackend(weights="copied").load(bundle, bundle.manifest.layers[0])


def test_an_endless_number_in_a_graph_is_refused() -> None:
    with pytest.raises(ValueError, match="ten bytes"):
        list(external_tensors(memoryview(b"\0" + b"\x80" * 10 + b"\1")))
