"""OPT as a decoder, and its structure, read from Hugging Face's config.json.

Galactica's checkpoints have the model type OPT, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast, get_args

from pydantic import Field

from ...engines.errors import UnsupportedModelError
from ...engines.manifest import MAX_LAYERS, MAX_TOKENS, MAX_WIDTH, ModelSpec
from .architecture import Architecture
from .decoder import (
    EMBEDDING,
    HEAD,
    Decoder,
    Norm,
    NormKind,
    PositionTable,
    Product,
)
from .model_config import ConfigReader, FamilySpec

Activation = Literal["relu", "gelu"]

_LAYER_NORM_EPSILON = 1e-5
_PREFIX = "decoder."
_POSITION_OFFSET = 2  # rows of the position table before position 0
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


def read_structure(config: Mapping[str, Any], name: str, max_seq_len: int | None) -> ModelSpec:
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
    projection = reader.size("word_embed_proj_dim", hidden_size, MAX_WIDTH, may_be_null=True)
    activation = cast("Activation", reader.choice("activation_function", get_args(Activation)))
    token_ids = {
        key: reader.token_id(key, default, vocab_size)
        for key, default in _DEFAULT_TOKEN_IDS.items()
    }
    reader.check_kind(_ARCHITECTURES)
    num_heads = sizes["num_attention_heads"]
    if hidden_size % num_heads and reader.accepted("hidden_size", "num_attention_heads"):
        reader.problems.append(
            f"num_attention_heads is {num_heads}; it must divide hidden_size {hidden_size}"
        )
    positions = sizes["max_position_embeddings"]
    length = reader.length(max_seq_len, positions, {})
    if reader.problems:
        raise UnsupportedModelError(name, *reader.problems)
    return OptSpec(
        name=name,
        num_layers=sizes["num_hidden_layers"],
        hidden_size=hidden_size,
        word_embed_proj_dim=projection,
        num_heads=num_heads,
        ffn_dim=sizes["ffn_dim"],
        vocab_size=vocab_size,
        max_position_embeddings=positions,
        max_seq_len=length,
        do_layer_norm_before=flags["do_layer_norm_before"],
        final_layer_norm=flags["do_layer_norm_before"] and not flags["_remove_final_layer_norm"],
        enable_bias=flags["enable_bias"],
        layer_norm_elementwise_affine=flags["layer_norm_elementwise_affine"],
        activation_function=activation,
        tie_word_embeddings=flags["tie_word_embeddings"],
        bos_token_id=token_ids["bos_token_id"],
        eos_token_id=token_ids["eos_token_id"],
        pad_token_id=token_ids["pad_token_id"],
    ).model_spec()


def decoder(model: ModelSpec) -> Decoder:
    """Return the parts of a model."""
    spec = OptSpec.of(model)
    size, width, ffn_dim = spec.hidden_size, spec.word_embed_proj_dim, spec.ffn_dim
    is_affine, is_narrow = spec.layer_norm_elementwise_affine, width != size

    def norm(name: str) -> Norm:
        kind: NormKind = "layer" if is_affine else "layer without weights"
        return Norm(name, size, _LAYER_NORM_EPSILON, kind)

    def product(name: str, in_size: int, out_size: int) -> Product:
        return Product(name, in_size, (out_size,), (name,), bias=spec.enable_bias)

    def projection(name: str, in_size: int, out_size: int) -> Product | None:
        part = Product(name, in_size, (out_size,), (name,), is_quantized=False)
        return part if is_narrow else None

    three = tuple(f"self_attn.{name}_proj" for name in "qkv")
    head = f"{_PREFIX}{EMBEDDING}" if spec.tie_word_embeddings else HEAD
    return Decoder(
        model=model,
        prefix=_PREFIX,
        token_width=width,
        positions=PositionTable(spec.max_position_embeddings + _POSITION_OFFSET, _POSITION_OFFSET),
        norms=(norm("self_attn_layer_norm"), norm("final_layer_norm")),
        norm_place="before" if spec.do_layer_norm_before else "of sum",
        qkv=Product("self_attn.qkv_proj", size, (size,) * 3, three, bias=spec.enable_bias),
        output=product("self_attn.out_proj", size, size),
        feed_forward=(product("fc1", size, ffn_dim), product("fc2", ffn_dim, size)),
        activation=spec.activation_function,
        head=Product(HEAD, width, (spec.vocab_size,), (head,)),
        final_norm=norm("final_layer_norm") if spec.final_layer_norm else None,
        project_in=projection("project_in", width, size),
        project_out=projection("project_out", size, width),
        buffers=(f"{_PREFIX}version",),  # in old fairseq conversions
    )


def reference_model(model: ModelSpec) -> Any:  # noqa: ANN401  (transformers is untyped)
    """Return Hugging Face's model with parameters on the meta device."""
    import torch
    from transformers import OPTConfig, OPTForCausalLM

    spec = OptSpec.of(model)
    config = OPTConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        word_embed_proj_dim=spec.word_embed_proj_dim,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        ffn_dim=spec.ffn_dim,
        max_position_embeddings=spec.max_position_embeddings,
        do_layer_norm_before=spec.do_layer_norm_before,
        _remove_final_layer_norm=spec.do_layer_norm_before and not spec.final_layer_norm,
        enable_bias=spec.enable_bias,
        layer_norm_elementwise_affine=spec.layer_norm_elementwise_affine,
        activation_function=spec.activation_function,
        tie_word_embeddings=spec.tie_word_embeddings,
        bos_token_id=spec.bos_token_id,
        eos_token_id=spec.eos_token_id,
        pad_token_id=spec.pad_token_id,
    )
    with torch.device("meta"):
        return OPTForCausalLM(config)


OPT = Architecture(read_structure, decoder, reference_model)
