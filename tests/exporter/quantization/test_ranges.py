"""Ranges of activations are read, checked against a model, and looked up by engine."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from built_engines import tiny_spec
from canonical_graphs import canonical_graph

from skipdec.engines.errors import UsageError
from skipdec.engines.manifest import EngineKind, PrecisionSpec
from skipdec.exporter.architecture.architecture import quantized_parameters
from skipdec.exporter.graphs.tensorrt import bind_activation_scales, lower
from skipdec.exporter.quantization.ranges import ActivationRanges

INT8 = PrecisionSpec(quantize="int8", head_quantize="none", activation_ranges="0" * 64)
FP8 = PrecisionSpec(quantize="fp8", head_quantize="fp8", activation_ranges="0" * 64)


def document() -> dict[str, Any]:
    layer = {
        name: 2.0 + i for i, name in enumerate(quantized_parameters(EngineKind.LAYER, tiny_spec()))
    }
    return {
        "layers": {"layer_000": layer, "layer_001": dict.fromkeys(layer, 1.5)},
        "head": {"lm_head.weight": 9},
    }


def read(content: Any) -> ActivationRanges:  # noqa: ANN401
    return ActivationRanges.from_json(json.dumps(content), "ranges.json")


def test_ranges_are_looked_up_by_engine() -> None:
    ranges = read(document())
    assert ranges.of("layer_000")["fc2.weight"] == 5.0
    assert ranges.of("layer_001")["fc2.weight"] == 1.5
    assert ranges.of("head") == {"lm_head.weight": 9.0}
    assert ranges.of("embed") == {}


def test_the_digest_depends_on_content_not_on_key_order() -> None:
    content = document()
    reordered = {"head": {"lm_head.weight": 9.0}, "layers": content["layers"]}
    assert read(content).digest == read(reordered).digest
    content["head"]["lm_head.weight"] = 9.5
    assert read(content).digest != read(reordered).digest


def test_every_problem_in_a_file_is_named() -> None:
    content = document()
    content["layers"]["layer_000"]["fc1.weight"] = -1
    content["layers"]["layer_001"]["fc1.weight"] = float("inf")
    content["head"]["lm_head.weight"] = "wide"
    content["scale"] = 1
    with pytest.raises(UsageError) as raised:
        read(content)
    text = str(raised.value)
    assert len(raised.value.problems) == 4
    for problem in (
        "layers.layer_000.fc1.weight is -1; input should be greater than 0",
        "layers.layer_001.fc1.weight is inf; input should be a finite number",
        "head.lm_head.weight is 'wide'",
        "scale is 1; extra inputs are not permitted",
    ):
        assert problem in text


@pytest.mark.parametrize("text", ["", "{", "[1]"])
def test_an_invalid_ranges_file_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match=r"ranges\.json"):
        ActivationRanges.from_json(text, "ranges.json")


def test_a_model_with_all_its_ranges_passes() -> None:
    for precision in (INT8, FP8, PrecisionSpec()):
        read(document()).check(tiny_spec(), precision, "ranges.json")


def test_ranges_of_another_model_are_refused_with_all_differences() -> None:
    content = document()
    del content["layers"]["layer_001"]
    del content["layers"]["layer_000"]["fc1.weight"]
    content["layers"]["layer_007"] = {}
    content["head"] = {"project_out.weight": 1.0}
    with pytest.raises(UsageError) as raised:
        read(content).check(tiny_spec(), FP8, "ranges.json")
    assert [problem.split(";")[0] for problem in raised.value.problems] == [
        "has ranges of layer_007",
        "layer_000 lacks the ranges of fc1.weight",
        "layer_001 lacks the ranges of fc1.weight, fc2.weight, self_attn.out_proj.weight, "
        "self_attn.qkv_proj.weight",
        "head has ranges of project_out.weight",
        "head lacks the ranges of lm_head.weight",
    ]


@pytest.mark.parametrize(("precision", "maximum"), [(INT8, 127), (FP8, 448)])
def test_ranges_become_the_scales_of_their_products(precision: PrecisionSpec, maximum: int) -> None:
    kind, model = EngineKind.LAYER, tiny_spec()
    lowered = lower(canonical_graph(kind, model, "float32"), kind, model, precision)
    ranges = read(document()).of("layer_000")
    bind_activation_scales(lowered, kind, ranges)
    for name in quantized_parameters(kind, model):
        value = lowered.graph.graph.initializers[f"{name}.activation_scale"]
        assert value.const_value is not None
        np.testing.assert_allclose(value.const_value.numpy(), ranges[name] / maximum, rtol=1e-6)


def test_engines_without_quantised_activations_need_no_ranges() -> None:
    kind, model = EngineKind.HEAD, tiny_spec()
    lowered = lower(canonical_graph(kind, model, "float32"), kind, model, INT8)
    bind_activation_scales(lowered, kind, {})
    assert not [name for name in lowered.graph.graph.initializers if "activation" in name]
