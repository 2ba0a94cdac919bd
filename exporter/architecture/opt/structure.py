"""The structure of an OPT model: read from Hugging Face's config.json, and published sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, cast, get_args

from pydantic import Field

from ....engines.errors import UnsupportedModelError
from ....engines.manifest import MAX_LAYERS, MAX_TOKENS, MAX_WIDTH
from ..family_spec import FamilySpec
from ..model_config import ConfigReader

Activation = Literal["relu", "gelu"]

_ARCHITECTURES = ("OPTForCausalLM", "OPTModel")

# Defaults of transformers' OPTConfig for missing fields, and the largest supported values.
_SIZES = {
    "num_hidden_layers": (12, MAX_LAYERS),
    "hidden_size": (768, MAX_WIDTH),
    "num_attention_heads": (12, MAX_WIDTH),
    "ffn_dim": (3072, MAX_WIDTH),
    "vocab_size": (50272, MAX_TOKENS),
    "max_position_embeddings": (2048, MAX_TOKENS),
}
_DEFAULT_FLAGS = {
    "do_layer_norm_before": True,
    "_remove_final_layer_norm": False,
    "enable_bias": True,
    "layer_norm_elementwise_affine": True,
    "tie_word_embeddings": True,
}
_DEFAULT_TOKEN_IDS = {"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1}


class OptSpec(FamilySpec):
    """A ModelSpec of this family, with the family's own facts as fields."""

    word_embed_proj_dim: int = Field(
        ge=1, le=MAX_WIDTH, description="!= hidden_size: project_in and project_out"
    )
    ffn_dim: int = Field(ge=1, le=MAX_WIDTH)
    do_layer_norm_before: bool = True
    final_layer_norm: bool = Field(default=True, description="a norm after the last layer")
    enable_bias: bool = True
    layer_norm_elementwise_affine: bool = True
    activation_function: Activation = "relu"


def read_structure(config: Mapping[str, Any], name: str, max_seq_len: int | None) -> OptSpec:
    """Return the structure that ``config`` (the content of config.json) describes.

    As in transformers' modeling_opt, the decoder ends in a norm iff ``do_layer_norm_before`` and
    not ``_remove_final_layer_norm``; project_in and project_out exist iff ``word_embed_proj_dim``
    differs from ``hidden_size``. Dropout, layerdrop and init_std only matter in training.

    Raises UnsupportedModelError with all reasons at once.
    """
    reader = ConfigReader(config)
    sizes = {key: reader.size(key, *bounds) for key, bounds in _SIZES.items()}
    flags = {key: reader.flag(key, default) for key, default in _DEFAULT_FLAGS.items()}
    hidden_size, vocab_size = sizes["hidden_size"], sizes["vocab_size"]
    projection = reader.size("word_embed_proj_dim", hidden_size, MAX_WIDTH)
    activation = cast("Activation", reader.choice("activation_function", get_args(Activation)))
    token_ids = {
        key: reader.token_id(key, default, vocab_size)
        for key, default in _DEFAULT_TOKEN_IDS.items()
    }
    reader.check_kind(_ARCHITECTURES)
    reader.check_heads(hidden_size, sizes["num_attention_heads"])
    positions = sizes["max_position_embeddings"]
    reader.check_max_seq_len(max_seq_len, positions)
    if reader.problems:
        raise UnsupportedModelError(name, *reader.problems)
    return OptSpec(
        name=name,
        num_layers=sizes["num_hidden_layers"],
        hidden_size=hidden_size,
        word_embed_proj_dim=projection,
        num_heads=sizes["num_attention_heads"],
        ffn_dim=sizes["ffn_dim"],
        vocab_size=vocab_size,
        max_position_embeddings=positions,
        max_seq_len=max_seq_len or positions,
        do_layer_norm_before=flags["do_layer_norm_before"],
        final_layer_norm=flags["do_layer_norm_before"] and not flags["_remove_final_layer_norm"],
        enable_bias=flags["enable_bias"],
        layer_norm_elementwise_affine=flags["layer_norm_elementwise_affine"],
        activation_function=activation,
        tie_word_embeddings=flags["tie_word_embeddings"],
        bos_token_id=token_ids["bos_token_id"],
        eos_token_id=token_ids["eos_token_id"],
        pad_token_id=token_ids["pad_token_id"],
    )


class _PublishedSize(NamedTuple):
    num_layers: int
    hidden_size: int
    num_heads: int
    word_embed_proj_dim: int
    do_layer_norm_before: bool = True


# Zhang et al., "OPT: Open Pre-trained Transformer Language Models" (arXiv 2205.01068), table 1,
# and the published config.json files; ffn_dim is four times hidden_size in all of them.
_PUBLISHED_SIZES = {
    "125m": _PublishedSize(12, 768, 12, 768),
    "350m": _PublishedSize(24, 1024, 16, 512, do_layer_norm_before=False),
    "1.3b": _PublishedSize(24, 2048, 32, 2048),
    "2.7b": _PublishedSize(32, 2560, 32, 2560),
    "6.7b": _PublishedSize(32, 4096, 32, 4096),
    "13b": _PublishedSize(40, 5120, 40, 5120),
    "30b": _PublishedSize(48, 7168, 56, 7168),
    "66b": _PublishedSize(64, 9216, 72, 9216),
}


def _config(size: _PublishedSize) -> dict[str, Any]:
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
    f"facebook/opt-{name}": _config(size) for name, size in _PUBLISHED_SIZES.items()
}
