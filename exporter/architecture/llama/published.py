"""Structures of published checkpoints, as in their config.json files on the hub."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class _Size(NamedTuple):
    """Layers, hidden size, heads of queries and of keys and values, width of the feed-forward."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    ffn_dim: int


Config = dict[str, Any]

_LLAMA2: Config = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": 32000,
}
_LLAMA3 = _LLAMA2 | {
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "vocab_size": 128256,
}
_SMOLLM2 = _LLAMA2 | {
    "bos_token_id": 0,
    "eos_token_id": 0,
    "max_position_embeddings": 8192,
    "rope_theta": 100000.0,
    "vocab_size": 49152,
}
_MISTRAL = _LLAMA2 | {
    "model_type": "mistral",
    "architectures": ["MistralForCausalLM"],
    "max_position_embeddings": 32768,
    "sliding_window": None,
}
_QWEN2: Config = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
_QWEN3 = _QWEN2 | {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "eos_token_id": 151645,
    "head_dim": 128,
    "max_position_embeddings": 40960,
}
_TIED: Config = {"tie_word_embeddings": True}
_UNTIED: Config = {"tie_word_embeddings": False}


def _config(base: Config, size: _Size, *others: Config) -> Config:
    """Return the checkpoint's config.json."""
    sizes = {
        "hidden_act": "silu",
        "hidden_size": size.hidden_size,
        "intermediate_size": size.ffn_dim,
        "num_attention_heads": size.num_heads,
        "num_hidden_layers": size.num_layers,
        "num_key_value_heads": size.num_kv_heads,
    }
    config = base | sizes
    for other in others:
        config |= other
    return config


def _scaled(factor: float) -> Config:
    """Return the rotary scaling of Llama 3.1 and 3.2, whose texts have up to 131,072 tokens."""
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    return {"max_position_embeddings": 131072, "rope_scaling": scaling}


_LLAMA_7B = _Size(32, 4096, 32, 32, 11008)
_LLAMA_8B = _Size(32, 4096, 32, 8, 14336)
_LLAMA_1B = _Size(16, 2048, 32, 8, 8192)
_LONG: Config = {"max_position_embeddings": 131072}

PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "meta-llama/Llama-2-7b-hf": _config(_LLAMA2, _LLAMA_7B, _UNTIED),
    "meta-llama/Meta-Llama-3-8B": _config(_LLAMA3, _LLAMA_8B, _UNTIED),
    "meta-llama/Llama-3.1-8B": _config(_LLAMA3, _LLAMA_8B, _UNTIED, _scaled(8.0)),
    "meta-llama/Llama-3.2-1B": _config(_LLAMA3, _LLAMA_1B, _TIED, _scaled(32.0)),
    "meta-llama/Llama-3.2-3B": _config(
        _LLAMA3, _Size(28, 3072, 24, 8, 8192), _TIED, _scaled(32.0), {"head_dim": 128}
    ),
    # Trained to exit early (arXiv 2404.16710); FAIR Noncommercial Research License.
    "facebook/layerskip-llama2-7B": _config(_LLAMA2, _LLAMA_7B, _UNTIED),
    "facebook/layerskip-llama3-8B": _config(_LLAMA3, _LLAMA_8B, _UNTIED),
    "facebook/layerskip-llama3.2-1B": _config(_LLAMA3, _LLAMA_1B, _TIED, _scaled(32.0)),
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": _config(
        _LLAMA2, _Size(22, 2048, 32, 4, 5632), _UNTIED, {"max_position_embeddings": 2048}
    ),
    "HuggingFaceTB/SmolLM2-135M": _config(_SMOLLM2, _Size(30, 576, 9, 3, 1536), _TIED),
    "HuggingFaceTB/SmolLM2-360M": _config(_SMOLLM2, _Size(32, 960, 15, 5, 2560), _TIED),
    "HuggingFaceTB/SmolLM2-1.7B": _config(
        _SMOLLM2, _Size(24, 2048, 32, 32, 8192), _TIED, {"rope_theta": 130000.0}
    ),
    "mistralai/Mistral-7B-v0.1": _config(_MISTRAL, _LLAMA_8B, _UNTIED, {"sliding_window": 4096}),
    "mistralai/Mistral-7B-v0.3": _config(
        _MISTRAL, _LLAMA_8B, _UNTIED, {"rope_theta": 1000000.0, "vocab_size": 32768}
    ),
    "Qwen/Qwen2.5-0.5B": _config(_QWEN2, _Size(24, 896, 14, 2, 4864), _TIED),
    "Qwen/Qwen2.5-1.5B": _config(_QWEN2, _Size(28, 1536, 12, 2, 8960), _TIED, _LONG),
    "Qwen/Qwen2.5-7B": _config(
        _QWEN2, _Size(28, 3584, 28, 4, 18944), _UNTIED, _LONG, {"vocab_size": 152064}
    ),
    "Qwen/Qwen3-0.6B": _config(_QWEN3, _Size(28, 1024, 16, 8, 3072), _TIED),
    "Qwen/Qwen3-1.7B": _config(_QWEN3, _Size(28, 2048, 16, 8, 6144), _TIED),
    "Qwen/Qwen3-8B": _config(_QWEN3, _Size(36, 4096, 32, 8, 12288), _UNTIED),
}
