"""Chained engine modules compute what transformers computes, and mistakes are visible."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from engine_chain import StateReader, chain_logits
from tiny_models import LLAMA_BASE, random_model
from transformers import PreTrainedModel

from skipdec.exporter.architecture.llama.structure import LlamaSpec
from skipdec.exporter.architecture.model_config import model_spec

TOKENS = np.random.default_rng(1).integers(3, 131, 40).tolist()
PARTS = (9, 1, 20, 1, 9)
# Each value is what a config.json changes in a model of two layers.
MODELS: dict[str, dict[str, Any]] = {
    "all heads their own": {"num_key_value_heads": 6},
    "one key head": {"num_key_value_heads": 1},
    "seven queries a key": {"num_attention_heads": 14, "hidden_size": 56, "head_dim": 8},
    "biases of attention": {"attention_bias": True},
    "biases of the feed-forward": {"mlp_bias": True},
    "tied": {"tie_word_embeddings": True},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 99.0, "factor": 2.0}},
    "mistral": {"model_type": "mistral", "head_dim": 24, "sliding_window": 40},
    "qwen2": {"model_type": "qwen2", "head_dim": 8},
    "qwen3": {"model_type": "qwen3", "head_dim": 24, "attention_bias": True},
    "phi3": {"model_type": "phi3", "hidden_size": 96, "partial_rotary_factor": 0.75},
    "longrope": {
        "model_type": "phi3",
        "hidden_size": 96,
        "original_max_position_embeddings": 40,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 99.0,
            "short_factor": [1.0, 1.1, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0],
            "long_factor": [9.0] * 8,
        },
    },
    "granite": {
        "model_type": "granite",
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.4,
        "residual_multiplier": 0.3,
        "logits_scaling": 2.5,
    },
    "smollm3": {"model_type": "smollm3", "no_rope_layers": [0, 1], "rope_theta": 99.0},
    "olmo2": {"model_type": "olmo2", "num_key_value_heads": 3},
}


@cache
def tiny(name: str) -> PreTrainedModel:
    small = {"model_type": "llama", **LLAMA_BASE, "num_hidden_layers": 2}
    return random_model({**small, **MODELS[name]})


def spec_of(model: PreTrainedModel) -> LlamaSpec:
    return LlamaSpec.of(model_spec(model.config.to_dict(), "tiny", 40))


def deviation(model: PreTrainedModel, spec: LlamaSpec) -> float:
    """Return the largest difference of log-probabilities from transformers'."""
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0].log_softmax(-1)
    seen = chain_logits(spec.model_spec(), StateReader(model), TOKENS, PARTS).log_softmax(-1)
    return float((seen - expected).abs().max())


@pytest.mark.parametrize("name", MODELS)
def test_log_probabilities_equal_transformers(name: str) -> None:
    model = tiny(name)
    assert deviation(model, spec_of(model)) < 5e-5


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("linear", {"rope_theta": 80.0}),
        ("linear", {"rope_factor": 2.1}),
        ("linear", {"rope_scale": 1.05}),
        ("linear", {"rope_type": "default"}),
        ("linear", {"rms_norm_eps": 2e-2}),
        ("phi3", {"rotary_dim": 16}),
        ("longrope", {"rope_short_factors": "1 1 1 1 1 1 1 1"}),
        ("smollm3", {"rotated_layers": "10"}),
        ("granite", {"embedding_multiplier": 1.0}),
        ("granite", {"attention_multiplier": 0.25}),
        ("granite", {"residual_multiplier": 1.0}),
        ("granite", {"logits_scaling": 1.0}),
    ],
    ids=str,
)
def test_a_mistake_in_the_structure_is_visible(name: str, change: dict[str, Any]) -> None:
    model = tiny(name)
    wrong = spec_of(model).model_copy(update=change)
    assert deviation(model, wrong) > 1e-3
