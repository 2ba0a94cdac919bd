"""How the model types of the family differ where config.json leaves it open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Member:
    """A model type: transformers' classes, its defaults, and what its layers always have.

    ``window``: whether ``sliding_window`` limits every layer, only those that ``layer_types`` or
    ``use_sliding_window`` name, or none.
    """

    classes: tuple[str, str]
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 2048
    vocab_size: int = 32000
    intermediate_size: int = 11008
    rope_theta: float = 10000.0
    token_ids: Mapping[str, int | None] = field(
        default_factory=lambda: {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
    )
    has_qkv_bias: bool = False
    reads_attention_bias: bool = False
    reads_mlp_bias: bool = False
    has_query_key_norm: bool = False
    window: Literal["all", "named", "none"] = "none"
    has_partial_rotation: bool = False


_QWEN_TOKENS: Mapping[str, int | None] = dict.fromkeys(
    ("bos_token_id", "eos_token_id", "pad_token_id")
)

MEMBERS: Mapping[str, Member] = {
    "llama": Member(
        classes=("LlamaForCausalLM", "LlamaModel"),
        reads_attention_bias=True,
        reads_mlp_bias=True,
    ),
    "mistral": Member(
        classes=("MistralForCausalLM", "MistralModel"),
        num_key_value_heads=8,
        max_position_embeddings=131072,
        intermediate_size=14336,
        window="all",
    ),
    "qwen2": Member(
        classes=("Qwen2ForCausalLM", "Qwen2Model"),
        num_key_value_heads=32,
        max_position_embeddings=32768,
        vocab_size=151936,
        intermediate_size=22016,
        token_ids=_QWEN_TOKENS,
        has_qkv_bias=True,
        window="named",
    ),
    "qwen3": Member(
        classes=("Qwen3ForCausalLM", "Qwen3Model"),
        num_key_value_heads=32,
        head_dim=128,
        max_position_embeddings=32768,
        vocab_size=151936,
        intermediate_size=22016,
        token_ids=_QWEN_TOKENS,
        reads_attention_bias=True,
        has_query_key_norm=True,
        window="named",
    ),
}
