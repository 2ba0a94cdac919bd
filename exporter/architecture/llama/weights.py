"""Checkpoint tensors of the family's engines, and those that can absorb factors of an input x.

product       x comes from                          1 / s is absorbed by
qkv_proj      the norm before attention             its weight
o_proj        attention, linear in V                V's output channels and bias
gate_up_proj  the norm before the feed-forward      its weight
down_proj     SiLU(gate) · up, linear in up         up's output channels and bias
lm_head       the final norm                        its weight

Granite's multipliers are factors of the tensors that they follow: of queries, of what is added to
the residual, of embeddings and of logits.
"""

from __future__ import annotations

import math

from ..architecture import HEAD_WEIGHT, MigrationSite
from ..weights import Parameter
from .structure import LlamaSpec

EMBEDDING = "embed_tokens.weight"
FREQUENCIES = "self_attn.inv_freq"
QKV = "self_attn.qkv_proj"
OUTPUT = "self_attn.o_proj"
GATE_UP = "mlp.gate_up_proj"
DOWN = "mlp.down_proj"
_THREE = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_TWO = ("mlp.gate_proj", "mlp.up_proj")
_BEFORE_ATTENTION = "input_layernorm"
_BEFORE_FEED_FORWARD = "post_attention_layernorm"
_BEHIND = ("post_attention_layernorm", "post_feedforward_layernorm")


def embed_parameters(model: LlamaSpec) -> tuple[Parameter, ...]:
    """Return the table of token embeddings."""
    shape = (model.vocab_size, model.hidden_size)
    factors = _only(model.embedding_multiplier)
    return (Parameter(EMBEDDING, shape, (EMBEDDING,), is_table=True, factors=factors),)


def layer_parameters(model: LlamaSpec, layer_index: int) -> tuple[Parameter, ...]:
    """Return a decoder layer's parameters."""
    size, ffn_dim, head_dim = model.hidden_size, model.ffn_dim, model.head_dim
    query, key = model.num_heads * head_dim, model.num_kv_heads * head_dim
    prefix = layer_prefix(layer_index)
    added = _only(model.residual_multiplier)
    first, second = _BEHIND if model.norms_behind else (_BEFORE_ATTENTION, _BEFORE_FEED_FORWARD)
    widths = (query, key) if model.head_norms == "whole" else (head_dim, head_dim)
    head_norms = (
        _norm(prefix, "self_attn.q_norm", widths[0]),
        _norm(prefix, "self_attn.k_norm", widths[1]),
    )
    three, two = _Projection(_THREE, (query, key, key)), _Projection(_TWO, (ffn_dim, ffn_dim))
    if model.packs_weights:
        three = _Projection((QKV,), (query + 2 * key,))
        two = _Projection((GATE_UP,), (2 * ffn_dim,))
    output, down = _Projection((OUTPUT,), (size,)), _Projection((DOWN,), (size,))
    return (
        _norm(prefix, first, size),
        *three.parameters(QKV, size, prefix, bias=model.qkv_bias, factors=_query_factors(model)),
        *(head_norms if model.head_norms != "none" else ()),
        _frequencies(model, layer_index),
        *output.parameters(OUTPUT, query, prefix, bias=model.output_bias, factors=added),
        _norm(prefix, second, size),
        *two.parameters(GATE_UP, size, prefix, bias=model.mlp_bias, is_gated=True),
        *down.parameters(DOWN, ffn_dim, prefix, bias=model.mlp_bias, factors=added),
    )


def head_parameters(model: LlamaSpec) -> tuple[Parameter, ...]:
    """Return the final norm and the vocabulary product."""
    size = model.hidden_size
    source = EMBEDDING if model.tie_word_embeddings else HEAD_WEIGHT
    product = Parameter(
        HEAD_WEIGHT,
        (size, model.vocab_size),
        (source,),
        transposed=True,
        is_product=True,
        factors=_only(None if model.logits_scaling is None else 1 / model.logits_scaling),
    )
    return (_norm("", "norm", size), product)


def layer_prefix(layer_index: int) -> str:
    """Return what precedes the names of a layer's tensors."""
    return f"layers.{layer_index}."


class _Projection:
    """A packed product of the checkpoint's projections ``sources``, each ``out_sizes`` wide."""

    def __init__(self, sources: tuple[str, ...], out_sizes: tuple[int, ...]) -> None:
        self.sources = sources
        self.out_sizes = out_sizes

    def parameters(
        self,
        name: str,
        in_size: int,
        prefix: str,
        *,
        bias: bool,
        factors: tuple[float, ...] = (),
        is_gated: bool = False,
    ) -> tuple[Parameter, ...]:
        """Return the weight and, if there is one, the bias."""
        out_size = sum(self.out_sizes)
        weight = Parameter(
            f"{name}.weight",
            (in_size, out_size),
            tuple(f"{prefix}{source}.weight" for source in self.sources),
            transposed=True,
            is_product=True,
            out_sizes=self.out_sizes,
            factors=factors,
            is_gated=is_gated,
        )
        if not bias:
            return (weight,)
        vector = Parameter(
            f"{name}.bias",
            (out_size,),
            tuple(f"{prefix}{source}.bias" for source in self.sources),
            out_sizes=self.out_sizes,
            factors=factors,
        )
        return weight, vector


def _norm(prefix: str, name: str, width: int) -> Parameter:
    weight = f"{name}.weight"
    return Parameter(weight, (width,), (f"{prefix}{weight}",), keeps_float32=True)


def _only(factor: float | None) -> tuple[float, ...]:
    """Return the factors of a parameter with one source."""
    return () if factor is None or factor == 1 else (factor,)


def _query_factors(model: LlamaSpec) -> tuple[float, ...]:
    """Return factors of q, k and v that turn 1 / sqrt(D) into the model's multiplier of scores."""
    if model.attention_multiplier is None:
        return ()
    return (model.attention_multiplier * math.sqrt(model.head_dim), 1.0, 1.0)


def _frequencies(model: LlamaSpec, layer_index: int) -> Parameter:
    """Return the rotary frequencies, which no checkpoint has to hold; 0 turns nothing."""
    values = tuple(float(each) for each in model.frequencies())
    if model.rotated_layers is not None and model.rotated_layers[layer_index] == "0":
        values = (0.0,) * len(values)
    return Parameter(FREQUENCIES, (len(values),), (), keeps_float32=True, values=values)


def layer_sites(model: LlamaSpec, layer_index: int) -> dict[str, MigrationSite]:
    """Return the sites of a decoder layer's products."""
    prefix = layer_prefix(layer_index)

    def sources(name: str, *, bias: bool) -> tuple[str, ...]:
        parts = ("weight", "bias") if bias else ("weight",)
        return tuple(f"{prefix}{name}.{part}" for part in parts)

    sites = {
        QKV: MigrationSite((f"{prefix}{_BEFORE_ATTENTION}.weight",)),
        OUTPUT: MigrationSite(sources(_THREE[2], bias=model.qkv_bias)),
        GATE_UP: MigrationSite((f"{prefix}{_BEFORE_FEED_FORWARD}.weight",)),
        DOWN: MigrationSite(sources(_TWO[1], bias=model.mlp_bias)),
    }
    if model.norms_behind:
        reason = "its input is the residual as well (norms come after)"
        sites |= dict.fromkeys((QKV, GATE_UP), MigrationSite(fixed=reason))
    if model.packs_weights:
        reason = "the checkpoint packs what produces its input with other channels"
        sites |= dict.fromkeys((OUTPUT, DOWN), MigrationSite(fixed=reason))
    elif model.num_heads != model.num_kv_heads:
        sites[OUTPUT] = MigrationSite(fixed="several query heads share a value head")
    return {f"{name}.weight": site for name, site in sites.items()}


def head_sites() -> dict[str, MigrationSite]:
    """Return the site of the vocabulary product."""
    return {HEAD_WEIGHT: MigrationSite(("norm.weight",))}
