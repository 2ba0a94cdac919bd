"""Parameters are built from the right checkpoint tensors, in the right order."""

from __future__ import annotations

import numpy as np
import pytest
from built_engines import STRUCTURES, RandomReader, tiny_spec
from tiny_models import tiny_model

from skipdec.engines.manifest import EngineKind, ModelSpec
from skipdec.exporter.architecture.architecture import engine_parameters, expected_tensors
from skipdec.exporter.architecture.decoder_modules import engine_module
from skipdec.exporter.architecture.model_config import model_spec


def layer_index(kind: EngineKind) -> int | None:
    return 1 if kind is EngineKind.LAYER else None


@pytest.mark.parametrize("kind", EngineKind)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_parameters_equal_the_modules_parameters(structure: str, kind: EngineKind) -> None:
    model = tiny_spec(structure)
    module = engine_module(kind, model)
    expected = {name: tuple(value.shape) for name, value in module.named_parameters()}
    parameters = engine_parameters(kind, model, layer_index(kind))
    assert {parameter.name: parameter.shape for parameter in parameters} == expected


@pytest.mark.parametrize("structure", ["pre_norm", "post_norm", "no_bias", "untied"])
def test_expected_tensors_equal_those_hugging_face_saves(structure: str) -> None:
    reference = tiny_model(structure)
    model = model_spec(reference.config.to_dict(), structure)
    tensors = {
        name.removeprefix("model."): tuple(tensor.shape)
        for name, tensor in reference.state_dict().items()
    }
    if model.tie_word_embeddings:
        del tensors["lm_head.weight"]
    assert expected_tensors(model) == tensors


@pytest.mark.parametrize("kind", EngineKind)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_loading_gives_the_declared_shape(structure: str, kind: EngineKind) -> None:
    model = tiny_spec(structure)
    for parameter in engine_parameters(kind, model, layer_index(kind)):
        assert parameter.load(RandomReader(model)).shape == parameter.shape


def packed(model: ModelSpec, name: str) -> np.ndarray:
    (parameter,) = (
        parameter
        for parameter in engine_parameters(EngineKind.LAYER, model, 1)
        if parameter.name == name
    )
    return parameter.load(RandomReader(model))


def test_query_key_and_value_are_packed_side_by_side_and_transposed() -> None:
    model = tiny_spec()
    reader, prefix = RandomReader(model), "decoder.layers.1.self_attn."
    parts = [reader.read(f"{prefix}{name}_proj.weight").T for name in "qkv"]
    np.testing.assert_array_equal(
        packed(model, "self_attn.qkv_proj.weight"), np.concatenate(parts, axis=1)
    )
    biases = [reader.read(f"{prefix}{name}_proj.bias") for name in "qkv"]
    np.testing.assert_array_equal(packed(model, "self_attn.qkv_proj.bias"), np.concatenate(biases))


def test_sources_of_two_types_are_packed_in_the_wider_type() -> None:
    class Mixed(RandomReader):
        def read(self, name: str) -> np.ndarray:
            return super().read(name).astype("float16" if "q_proj" in name else "float32")

    reader, name = Mixed(tiny_spec()), "self_attn.qkv_proj.weight"
    (parameter,) = (
        each for each in engine_parameters(EngineKind.LAYER, tiny_spec(), 1) if each.name == name
    )
    parts = [reader.read(source).T for source in parameter.sources]
    np.testing.assert_array_equal(parameter.load(reader), np.concatenate(parts, axis=1))


def test_a_tied_head_reads_the_embedding_and_an_untied_head_does_not() -> None:
    sources = {
        structure: engine_parameters(EngineKind.HEAD, tiny_spec(structure))[-1].sources
        for structure in ("pre_norm", "untied")
    }
    assert sources == {
        "pre_norm": ("decoder.embed_tokens.weight",),
        "untied": ("lm_head.weight",),
    }
