"""The structure of an OPT model, read from Hugging Face's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast, get_args

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
