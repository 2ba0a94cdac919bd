"""The published sizes of OPT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class _Size(NamedTuple):
    num_layers: int
    hidden_size: int
    num_heads: int
    word_embed_proj_dim: int
    do_layer_norm_before: bool = True


# Zhang et al., "OPT: Open Pre-trained Transformer Language Models" (arXiv 2205.01068), table 1,
# and the published config.json files; ffn_dim is four times hidden_size in all of them.
_SIZES = {
    "125m": _Size(12, 768, 12, 768),
    "350m": _Size(24, 1024, 16, 512, do_layer_norm_before=False),
    "1.3b": _Size(24, 2048, 32, 2048),
    "2.7b": _Size(32, 2560, 32, 2560),
    "6.7b": _Size(32, 4096, 32, 4096),
    "13b": _Size(40, 5120, 40, 5120),
    "30b": _Size(48, 7168, 56, 7168),
    "66b": _Size(64, 9216, 72, 9216),
}


def _config(size: _Size) -> dict[str, Any]:
    """Return the checkpoint's config.json."""
    return {
        "model_type": "opt",
        "architectures": ["OPTForCausalLM"],
        "activation_function": "relu",
        "bos_token_id": 2,
        "do_layer_norm_before": size.do_layer_norm_before,
        "_remove_final_layer_norm": False,
        "eos_token_id": 2,
        "ffn_dim": 4 * size.hidden_size,
        "hidden_size": size.hidden_size,
        "max_position_embeddings": 2048,
        "num_attention_heads": size.num_heads,
        "num_hidden_layers": size.num_layers,
        "pad_token_id": 1,
        "tie_word_embeddings": True,
        "vocab_size": 50272,
        "word_embed_proj_dim": size.word_embed_proj_dim,
    }


PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    f"facebook/opt-{name}": _config(size) for name, size in _SIZES.items()
}
