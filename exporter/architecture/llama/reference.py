"""Hugging Face's own model of a structure, against which bundles are verified."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from .structure import LlamaSpec

_NULLABLE = ("sliding_window", "bos_token_id", "eos_token_id", "pad_token_id")


def reference_model(spec: LlamaSpec) -> Any:  # noqa: ANN401  (transformers is untyped)
    """Return the model with parameters on the meta device and real rotary frequencies.

    Sliding windows are left out: no text of the bundle is longer than one.
    """
    facts: dict[str, Any] = {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.ffn_dim,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "rms_norm_eps": spec.rms_norm_eps,
        "max_position_embeddings": spec.max_position_embeddings,
        "rope_parameters": spec.rope_parameters(),
        "attention_bias": spec.output_bias,
        "mlp_bias": spec.mlp_bias,
        "sliding_window": None,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "bos_token_id": spec.bos_token_id,
        "eos_token_id": spec.eos_token_id,
        "pad_token_id": spec.pad_token_id,
        "original_max_position_embeddings": spec.rope_original_length,
        "no_rope_layers": spec.rotated_layers and [int(each) for each in spec.rotated_layers],
        "embedding_multiplier": spec.embedding_multiplier,
        "attention_multiplier": spec.attention_multiplier,
        "residual_multiplier": spec.residual_multiplier,
        "logits_scaling": spec.logits_scaling,
    }
    optional = facts.keys() - {*_NULLABLE}
    given = {key: value for key, value in facts.items() if value is not None or key not in optional}
    config = AutoConfig.for_model(spec.family, **given)
    with torch.device("meta"):
        reference = AutoModelForCausalLM.from_config(config)
    decoder = reference.model
    decoder.rotary_emb = type(decoder.rotary_emb)(config)  # its buffers are in no checkpoint
    return reference
