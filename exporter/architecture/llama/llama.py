"""LLaMA and its relatives as decoders.

Granite's multipliers become factors of weights: those of queries, of the products whose results are
added to the residual, of embeddings and of the head.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from ....engines.manifest import ModelSpec
from ..architecture import Architecture
from ..decoder import EMBEDDING, HEAD, Decoder, Norm, Product, Rotation
from .structure import LlamaSpec, read_structure

_NULLABLE = ("sliding_window", "bos_token_id", "eos_token_id", "pad_token_id")
_BEHIND_ATTENTION = "post_attention_layernorm"  # before the feed-forward, or after attention


def decoder(model: ModelSpec) -> Decoder:
    """Return the parts of a model."""
    spec = LlamaSpec.of(model)
    size, ffn_dim, head_dim = spec.hidden_size, spec.ffn_dim, spec.head_dim
    query, key = spec.num_heads * head_dim, spec.num_kv_heads * head_dim
    multiplier = spec.attention_multiplier  # of scores, in place of 1 / sqrt(D)
    scores = () if multiplier is None else (multiplier * math.sqrt(head_dim), 1.0, 1.0)
    added, bias = _only(spec.residual_multiplier), spec.mlp_bias
    widths = {"none": (), "head": (head_dim, head_dim), "whole": (query, key)}[spec.head_norms]
    norm, product = partial(_norm, spec), partial(_product, spec)
    second = "post_feedforward_layernorm" if spec.norms_behind else _BEHIND_ATTENTION
    head = EMBEDDING if spec.tie_word_embeddings else HEAD
    still = (index for index, each in enumerate(spec.rotated_layers or ()) if each == "0")
    return Decoder(
        model=model,
        prefix="",
        token_width=size,
        token_factors=_only(spec.embedding_multiplier),
        positions=Rotation(
            tuple(map(float, spec.frequencies())), spec.rope_scale, frozenset(still)
        ),
        norms=(
            norm(_BEHIND_ATTENTION if spec.norms_behind else "input_layernorm", size),
            norm(second, size),
        ),
        norm_place="of added" if spec.norms_behind else "before",
        qkv=product(
            "self_attn.qkv_proj",
            size,
            {"q": query, "k": key, "v": key},
            bias=spec.qkv_bias,
            factors=scores,
        ),
        head_norms=tuple(
            norm(f"self_attn.{each}_norm", width) for each, width in zip("qk", widths, strict=False)
        ),
        norms_whole=spec.head_norms == "whole",
        output=product(
            "self_attn.o_proj", query, {"o": size}, bias=spec.output_bias, factors=added
        ),
        feed_forward=(
            product("mlp.gate_up_proj", size, {"gate": ffn_dim, "up": ffn_dim}, bias=bias),
            product("mlp.down_proj", ffn_dim, {"down": size}, bias=bias, factors=added),
        ),
        activation="gated silu",
        final_norm=norm("norm", size),
        head=Product(
            HEAD,
            size,
            (spec.vocab_size,),
            (head,),
            factors=_only(None if spec.logits_scaling is None else 1 / spec.logits_scaling),
        ),
        buffers=tuple(  # of old files
            f"layers.{index}.self_attn.rotary_emb.inv_freq" for index in range(spec.num_layers)
        ),
    )


def _norm(spec: LlamaSpec, name: str, width: int) -> Norm:
    return Norm(name, width, spec.rms_norm_eps)


def _only(factor: float | None) -> tuple[float, ...]:
    """Return the factor of all parts of a product; nothing for 1."""
    return () if factor is None or factor == 1 else (factor,)


def _product(
    spec: LlamaSpec,
    name: str,
    in_size: int,
    sources: dict[str, int],
    *,
    bias: bool,
    factors: tuple[float, ...] = (),
) -> Product:
    """Pack ``sources`` (name to width), which some checkpoints store packed as ``name``."""
    outer, _, _ = name.rpartition(".")
    parts = {f"{outer}.{source}_proj": width for source, width in sources.items()}
    if spec.packs_weights:
        parts = {name: sum(sources.values())}
    return Product(
        name,
        in_size,
        tuple(parts.values()),
        tuple(parts),
        bias=bias,
        factors=factors,
        is_gated="gate" in sources,
    )


def reference_model(model: ModelSpec) -> Any:  # noqa: ANN401  (transformers is untyped)
    """Return Hugging Face's model with parameters on the meta device and real frequencies.

    Sliding windows are left out, because no text of the bundle is longer than one.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    spec = LlamaSpec.of(model)
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
    decoder.rotary_emb = type(decoder.rotary_emb)(config)  # checkpoints don't contain its buffers
    return reference


LLAMA = Architecture(read_structure, decoder, reference_model)
