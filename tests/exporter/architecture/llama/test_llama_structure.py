"""Structures of the LLaMA family are those that transformers reads from config.json."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub.errors import StrictDataclassClassValidationError
from transformers import AutoConfig, AutoModelForCausalLM

from skipdec.engines.errors import UnsupportedModelError
from skipdec.exporter.architecture.architecture import (
    expected_tensors,
    family_architecture,
    family_config,
)
from skipdec.exporter.architecture.llama.members import MEMBERS
from skipdec.exporter.architecture.llama.structure import LlamaSpec
from skipdec.exporter.architecture.model_config import model_spec

TINY: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "intermediate_size": 80,
    "max_position_embeddings": 4096,
}
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "dynamic": {"factor": 2.5},
    "linear": {"factor": 3.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 1024},
}
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "short_factor": [1.5] * 12,
    "long_factor": [2.0] * 12,
}
PHI: dict[str, Any] = {**TINY, "model_type": "phi3", "hidden_size": 144}
YARNS: list[dict[str, Any]] = [
    {"attention_factor": 0.9},
    {"mscale": 0.7, "mscale_all_dim": 1.1},
    {"truncate": False, "beta_fast": 20, "beta_slow": 2},
]


def spec_of(config: dict[str, Any], max_seq_len: int | None = None) -> LlamaSpec:
    return LlamaSpec.of(model_spec(config, "tiny", max_seq_len))


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    ("kind", "more"),
    [*((kind, {}) for kind in SCALINGS), *(("yarn", more) for more in YARNS)],
)
def test_frequencies_equal_transformers(model_type: str, kind: str, more: dict[str, Any]) -> None:
    rope = {"rope_type": kind, "rope_theta": 5000.0, **SCALINGS[kind], **more}
    config = AutoConfig.for_model(model_type, **TINY, rope_parameters=rope, sliding_window=None)
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(config).model.rotary_emb
    theirs = type(theirs)(config)
    spec = spec_of(config.to_dict())
    np.testing.assert_allclose(spec.frequencies(), theirs.inv_freq, rtol=3e-7)
    assert math.isclose(spec.rope_scale, theirs.attention_scaling, rel_tol=1e-12)


@pytest.mark.parametrize("kind", SCALINGS)
def test_both_spellings_of_a_rotation_mean_the_same(kind: str) -> None:
    config = {"model_type": "llama", **TINY}
    scaling = SCALINGS[kind]
    new = {"rope_parameters": {"rope_type": kind, "rope_theta": 5000.0, **scaling}}
    old = {"rope_theta": 5000.0, "rope_scaling": {"type": kind, **scaling}}
    assert spec_of(config | new) == spec_of(config | old)


@pytest.mark.parametrize("model_type", MEMBERS)
def test_missing_fields_get_the_defaults_of_transformers(model_type: str) -> None:
    spec = spec_of({"model_type": model_type})
    config = AutoConfig.for_model(model_type)
    names = {
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "num_kv_heads": "num_key_value_heads",
        "ffn_dim": "intermediate_size",
    }
    same = ("hidden_size", "vocab_size", "max_position_embeddings", "tie_word_embeddings")
    same += ("rms_norm_eps", "bos_token_id", "eos_token_id", "pad_token_id")
    for ours, theirs in (*names.items(), *zip(same, same, strict=True)):
        assert getattr(spec, ours) == getattr(config, theirs), ours
    assert spec.rope_theta == config.rope_parameters["rope_theta"]
    width = config.hidden_size // config.num_attention_heads
    assert spec.head_dim == (getattr(config, "head_dim", None) or width)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shapes = {name.removeprefix("model."): p.shape for name, p in model.named_parameters()}
    assert expected_tensors(spec) == shapes


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("Llama-3.2-1B", 1236),
        ("Llama-3.2-3B", 3213),
        ("Llama-3.1-8B", 8030),
        ("layerskip-llama3.2-1B", 1236),
        ("TinyLlama-1.1B-Chat-v1.0", 1100),
        ("SmolLM2-135M", 135),
        ("Mistral-7B-v0.1", 7242),
        ("Qwen2.5-0.5B", 494),
        ("Qwen3-0.6B", 596),
    ],
)
def test_published_sizes_have_the_published_number_of_parameters(name: str, millions: int) -> None:
    config = family_config(name)
    assert config is not None
    model = model_spec(config, name)
    count = sum(math.prod(shape) for shape in expected_tensors(model).values())
    assert round(count / 1e6) == millions
    assert model.max_seq_len == min(8192, 4096 if "v0.1" in name else model.max_position_embeddings)


def test_a_reference_model_rotates_with_real_frequencies() -> None:
    rope = {"rope_type": "yarn", "rope_theta": 5000.0, **SCALINGS["yarn"]}
    model = spec_of({"model_type": "qwen3", **TINY, "rope_parameters": rope}).model_spec()
    rotary = family_architecture(model.family).reference_model(model).model.rotary_emb
    np.testing.assert_allclose(LlamaSpec.of(model).frequencies(), rotary.inv_freq, rtol=3e-7)


@pytest.mark.parametrize(
    ("model_type", "config", "longest"),
    [
        ("mistral", {"sliding_window": 100}, 100),
        ("mistral", {}, 4096),
        ("mistral", {"sliding_window": None}, 4096),
        ("qwen2", {"sliding_window": 100}, 4096),
        ("qwen2", {"sliding_window": 100, "use_sliding_window": True}, 4096),
        ("qwen2", {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 1}, 9),
        ("qwen3", {"sliding_window": 9, "layer_types": ["full_attention"] * 2}, 4096),
        ("qwen3", {"sliding_window": 9, "layer_types": ["sliding_attention"] * 2}, 9),
        ("llama", {"sliding_window": 9}, 4096),
        ("llama", {"max_position_embeddings": 65536}, 8192),
    ],
)
def test_bundles_are_no_longer_than_a_sliding_window(
    model_type: str, config: dict[str, Any], longest: int
) -> None:
    full = {"model_type": model_type, **TINY, **config}
    assert spec_of(full).max_seq_len == longest
    assert spec_of(full, max_seq_len=longest).max_seq_len == longest
    if longest < 4096:
        with pytest.raises(UnsupportedModelError, match=f"window .* allowed: up to {longest}"):
            spec_of(full, max_seq_len=longest + 1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; allowed: silu"),
        ({"num_key_value_heads": 4}, "must be a multiple of num_key_value_heads 4"),
        ({"head_dim": None, "num_attention_heads": 7}, "without head_dim it must divide"),
        ({"rope_scaling": {"type": "mrope"}}, "rope: rope_type is 'mrope'; allowed: default"),
        ({"rope_scaling": {"type": "linear"}}, "rope: factor is missing"),
        *(
            (
                {"rope_scaling": SCALINGS[kind] | {"type": kind, "factor": 0.4}},
                "factor is 0.4; allow",
            )
            for kind in ("linear", "llama3", "yarn")
        ),
        ({"rope_theta": 1}, "rope: rope_theta is 1.0; allowed: above 1"),
        ({"rope_parameters": {"full_attention": {}}}, "allowed: one object for all layers"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; allowed: 1"),
        ({"rope_theta": -1}, "rope_theta is -1; allowed: a number above 0"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps is '1e-5'; allowed: a number above 0"),
        ({"rms_norm_eps": 1e300}, "rms_norm_eps is 1e+300; allowed: a number above 0 within"),
        ({"rms_norm_eps": 10**400}, "0000…; allowed: a number above 0 within float32's range"),
        ({"rope_theta": 1e-300}, "rope_theta is 1e-300; allowed: a number above 0 within float32"),
        (
            {"rope_scaling": {"type": "linear", "factor": 1e30}},
            "factor is 1e+30; allowed: 0.5 to 16,777,216",
        ),
        ({"rope_scaling": {"type": "dynamic", "factor": -3}}, "factor is -3; allowed: a number"),
        ({"rope_scaling": {"type": "dynamic", "factor": 0.1}}, "factor is 0.1; allowed: 0.5 to"),
        ({"rope_scaling": {"type": "dynamic"}}, "rope: factor is missing"),
        (
            {"rope_scaling": {"type": "longrope", "original_max_position_embeddings": 1}},
            "original_max_position_embeddings is 1; allowed: 2 or more",
        ),
        (
            {
                "rope_theta": 3e38,
                "rope_scaling": SCALINGS["yarn"] | {"type": "yarn", "factor": 1e7},
            },
            "radians per position; allowed: above 0, up to 2",
        ),
        ({"layer_types": ["sliding_attention"]}, "allowed: full_attention or sliding_attention"),
        ({"layer_types": ["nonsense"] * 2}, "layer_types is ['nonsense', 'nonsense']; allowed:"),
        ({"layer_types": "full_attention"}, "for each of 2 layers"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "allowed: LlamaForCausalLM"),
    ],
)
def test_structures_that_cannot_be_compiled_are_refused_by_name(
    change: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        spec_of({"model_type": "llama", **TINY, "num_key_value_heads": 1, **change})
    assert reason in str(caught.value)


@pytest.mark.parametrize("key", ["hidden_size", "num_attention_heads", "num_key_value_heads"])
def test_a_refused_number_of_heads_is_not_compared_with_others(key: str) -> None:
    numbers = {"hidden_size": 50, "num_attention_heads": 5, "num_key_value_heads": 5}
    with pytest.raises(UnsupportedModelError) as caught:
        spec_of({"model_type": "llama", **TINY, "head_dim": None, **numbers, key: 0})
    (problem,) = caught.value.problems
    assert problem.startswith(f"{key} is 0; allowed: an integer from 1")


@pytest.mark.parametrize(
    ("change", "problems"),
    [
        (
            {"max_position_embeddings": -5, "rope_scaling": {"type": "yarn"}},
            ["max_position_embeddings is -5; allowed: an integer from 1 to 16777216"],
        ),
        (
            {
                "max_position_embeddings": "x",
                "rope_scaling": {"type": "yarn", "original_max_position_embeddings": 2**24},
            },
            ["max_position_embeddings is 'x'; allowed: an integer from 1 to 16777216"],
        ),
        (
            {
                "max_position_embeddings": 64,
                "rope_scaling": {"type": "yarn", "original_max_position_embeddings": 129},
            },
            [
                "rope: original_max_position_embeddings is 129; allowed without factor: up to 128, "
                "twice max_position_embeddings"
            ],
        ),
        (
            {"rope_scaling": {"type": "llama3", "factor": 8.0}},
            [
                "rope: low_freq_factor is missing; set it in config.json",
                "rope: high_freq_factor is missing; set it in config.json",
            ],
        ),
    ],
)
def test_a_value_that_replaces_a_bad_one_is_no_problem_of_its_own(
    change: dict[str, Any], problems: list[str]
) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        spec_of({"model_type": "llama", **TINY, **change})
    assert list(caught.value.problems) == problems


@pytest.mark.parametrize(
    "factor", [pytest.param(10**400, id="huge"), 1e39, math.nan, True, 0.4, "1", None]
)
def test_every_factor_of_longrope_must_be_a_number(factor: object) -> None:
    factors = [1.0] * 11 + [factor]
    rope = {"rope_type": "longrope", "short_factor": factors, "long_factor": factors}
    with pytest.raises(UnsupportedModelError, match=r"short_factor is .*; allowed: 12 numbers"):
        spec_of({**PHI, "rope_scaling": rope})


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        *(
            (
                {**PHI, "rope_scaling": {**SCALINGS[kind], "rope_type": kind}},
                f"rope: rope_type is '{kind}'; allowed: default, longrope",
            )
            for kind in ("linear", "dynamic", "llama3")
        ),
        (
            {**PHI, "head_dim": 16, "rope_scaling": {**LONGROPE, "short_factor": [1.0] * 8}},
            "head_dim is 16; allowed with longrope: 24",
        ),
        (
            {**TINY, "model_type": "llama", "hidden_size": 50},
            "num_attention_heads is 6; it must divide hidden_size 50",
        ),
    ],
    ids=["linear", "dynamic", "llama3", "phi3 head_dim", "llama heads"],
)
def test_structures_that_transformers_refuses_are_refused_before_engines_are_built(
    config: dict[str, Any], reason: str
) -> None:
    with pytest.raises(StrictDataclassClassValidationError):
        AutoConfig.for_model(**config)
    with pytest.raises(UnsupportedModelError) as caught:
        spec_of(config)
    assert reason in str(caught.value)


@pytest.mark.parametrize("name", ["su", "yarn"])
def test_old_names_of_longrope_are_accepted(name: str) -> None:
    old = {"type": name} | {key: LONGROPE[key] for key in LONGROPE.keys() - {"rope_type"}}
    assert spec_of({**PHI, "rope_scaling": old}) == spec_of({**PHI, "rope_scaling": LONGROPE})
