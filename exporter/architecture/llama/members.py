"""Differences between the model types of the family that config.json does not state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

HeadNorms = Literal["none", "head", "whole"]
"""RMS norms of queries and keys: none, over each head, or over all heads together."""

_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "sliding_window": None,
}


@dataclass(frozen=True)
class Member:
    """A model type: the prefix of transformers' classes and what its layers always have.

    ``changes``: defaults of its configuration class that differ from LlamaConfig's. ``flags``: the
    biases that config.json may switch on. ``window``: the layers that ``sliding_window`` limits,
    those that ``layer_types`` or ``use_sliding_window`` name, or none.
    ``packs_weights``: checkpoints have one tensor for queries, keys and values, and one for gate
    and up. ``norms_behind``: norms follow attention and feed-forward instead of preceding them.
    ``heads_divide_size``: their number must divide the hidden size, whatever ``head_dim`` is.
    """

    prefix: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    flags: tuple[Literal["attention_bias", "mlp_bias"], ...] = ()
    window: Literal["all", "named", "none"] = "none"
    has_qkv_bias: bool = False
    head_norms: HeadNorms = "none"
    has_partial_rotation: bool = False
    packs_weights: bool = False
    has_multipliers: bool = False
    skips_rotation: bool = False
    norms_behind: bool = False
    heads_divide_size: bool = False

    @property
    def classes(self) -> tuple[str, str]:
        """Return the classes that ``architectures`` may name."""
        return f"{self.prefix}ForCausalLM", f"{self.prefix}Model"

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Return the defaults of fields that config.json lacks."""
        return {**_DEFAULTS, **self.changes}


_QWEN: Mapping[str, Any] = {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "bos_token_id": None,
    "eos_token_id": None,
    "sliding_window": 4096,
}

MEMBERS: Mapping[str, Member] = {
    "llama": Member("Llama", flags=("attention_bias", "mlp_bias"), heads_divide_size=True),
    "mistral": Member(
        "Mistral",
        changes={
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
        },
        window="all",
    ),
    "qwen2": Member("Qwen2", changes=_QWEN, window="named", has_qkv_bias=True),
    "qwen3": Member(
        "Qwen3",
        changes={**_QWEN, "head_dim": 128},
        flags=("attention_bias",),
        window="named",
        head_norms="head",
    ),
    "phi3": Member(
        "Phi3",
        changes={
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "eos_token_id": 32000,
            "pad_token_id": 32000,
        },
        window="all",
        has_partial_rotation=True,
        packs_weights=True,
    ),
    "granite": Member("Granite", flags=("attention_bias", "mlp_bias"), has_multipliers=True),
    "smollm3": Member(
        "SmolLM3",
        changes={
            "vocab_size": 128256,
            "hidden_size": 2048,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": True,
            "rope_theta": 2000000.0,
            "bos_token_id": 128000,
            "eos_token_id": 128001,
            "pad_token_id": 128004,
        },
        flags=("attention_bias", "mlp_bias"),
        window="named",
        skips_rotation=True,
    ),
    "olmo2": Member(
        "Olmo2",
        changes={
            "vocab_size": 50304,
            "rms_norm_eps": 1e-5,
            "bos_token_id": None,
            "eos_token_id": 50279,
            "pad_token_id": 1,
        },
        flags=("attention_bias",),
        head_norms="whole",
        norms_behind=True,
    ),
}
