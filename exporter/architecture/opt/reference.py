"""Hugging Face's own implementation of OPT."""

from __future__ import annotations

import torch
from transformers import OPTConfig, OPTForCausalLM

from .structure import OptSpec


def hugging_face_model(model: OptSpec) -> OPTForCausalLM:
    """Return ``OPTForCausalLM`` of this structure, with parameters on the meta device."""
    config = OPTConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        word_embed_proj_dim=model.word_embed_proj_dim,
        num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_heads,
        ffn_dim=model.ffn_dim,
        max_position_embeddings=model.max_position_embeddings,
        do_layer_norm_before=model.do_layer_norm_before,
        _remove_final_layer_norm=model.do_layer_norm_before and not model.final_layer_norm,
        enable_bias=model.enable_bias,
        layer_norm_elementwise_affine=model.layer_norm_elementwise_affine,
        activation_function=model.activation_function,
        tie_word_embeddings=model.tie_word_embeddings,
        bos_token_id=model.bos_token_id,
        eos_token_id=model.eos_token_id,
        pad_token_id=model.pad_token_id,
    )
    with torch.device("meta"):
        return OPTForCausalLM(config)
