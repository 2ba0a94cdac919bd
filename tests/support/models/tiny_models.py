"""Tiny random OPT checkpoints of every structure, as Hugging Face saves them."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import OPTConfig, OPTForCausalLM

# What each structure changes in BASE. Sizes differ so that swapped dimensions can't go unnoticed.
STRUCTURES: dict[str, dict[str, object]] = {
    "pre_norm": {},
    "post_norm": {  # opt-350m: norms after the residual, embeddings narrower, no final norm
        "do_layer_norm_before": False,
        "word_embed_proj_dim": 24,
        "hidden_size": 48,
        "num_attention_heads": 3,
        "ffn_dim": 80,
    },
    "no_bias": {  # Galactica: no biases, norms without weights, GELU
        "enable_bias": False,
        "layer_norm_elementwise_affine": False,
        "activation_function": "gelu",
        "vocab_size": 300,
    },
    "untied": {"tie_word_embeddings": False, "hidden_size": 64, "ffn_dim": 128},
    "no_final_norm": {"_remove_final_layer_norm": True},
}
BASE: dict[str, object] = {
    "vocab_size": 131,
    "hidden_size": 32,
    "num_hidden_layers": 6,
    "ffn_dim": 96,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "init_std": 0.2,
    "dropout": 0.0,
}


def tiny_model(structure: str, seed: int = 0) -> OPTForCausalLM:
    """Return a random float32 model in evaluation mode that makes every mistake visible.

    With the default initialisation (std 0.02, biases 0, norms 1), a wrong position offset, a
    dropped bias or a swapped norm would not show in tests. Here weights have std 0.2 and all
    vectors N(0, 0.1) added.
    """
    torch.manual_seed(seed)
    model = OPTForCausalLM(OPTConfig(**{**BASE, **STRUCTURES[structure]})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    return model


def write_checkpoint(structure: str, directory: Path) -> Path:
    """Save ``tiny_model(structure)`` in ``directory`` (safetensors, no tokenizer)."""
    tiny_model(structure).save_pretrained(directory)
    return directory
