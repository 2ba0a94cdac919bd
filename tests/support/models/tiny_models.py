"""Make tiny random checkpoints of every structure, as Hugging Face saves them."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

# What each structure of OPT changes in BASE. Sizes differ so that a swap shows.
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


# What each structure of the LLaMA family changes in LLAMA_BASE.
LLAMA_STRUCTURES: dict[str, dict[str, object]] = {
    "llama": {  # biases everywhere, a tied head, scaled rotation, three queries per key
        "model_type": "llama",
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 100.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "qwen3": {  # no bias, norms of heads, cosines and sines with a factor
        "model_type": "qwen3",
        "hidden_size": 40,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 24,
        "intermediate_size": 112,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 100.0,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
}
LLAMA_BASE: dict[str, object] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 80,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-2,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": None,
}
# What each relative of LLaMA changes in LLAMA_BASE besides its model type.
LLAMA_RELATIVES: dict[str, dict[str, object]] = {
    "mistral": {"sliding_window": 32},
    "qwen2": {"head_dim": 8},
    "phi3": {"hidden_size": 96, "partial_rotary_factor": 0.75},
    "granite": {
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.4,
        "residual_multiplier": 0.3,
        "logits_scaling": 2.5,
    },
    "smollm3": {"no_rope_layers": [0, 1, 1, 0]},
    "olmo2": {"num_key_value_heads": 3},
}
EVERY_STRUCTURE = (*STRUCTURES, *LLAMA_STRUCTURES)


def tiny_model(structure: str) -> PreTrainedModel:
    """Return a random float32 model in evaluation mode that makes every mistake visible.

    With the default initialisation (std 0.02, biases 0, norms 1), a wrong position offset, a
    dropped bias or a swapped norm would not show in tests. Here weights have std 0.2 and all
    vectors N(0, 0.1) added.
    """
    if structure in STRUCTURES:
        return random_model({"model_type": "opt", **BASE, **STRUCTURES[structure]})
    return random_model({**LLAMA_BASE, **LLAMA_STRUCTURES[structure]})


def random_model(config: dict[str, object]) -> PreTrainedModel:
    """Return the model of a config.json with the weights that ``tiny_model`` describes."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    return model


def write_checkpoint(structure: str, directory: Path) -> Path:
    """Save ``tiny_model(structure)`` in ``directory`` (safetensors, no tokenizer)."""
    tiny_model(structure).save_pretrained(directory)
    return directory
