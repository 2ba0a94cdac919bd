"""Checkpoint tensors of the family's engines, and those that can absorb factors of an input x.

product       x comes from                          1 / s is absorbed by
qkv_proj      the norm before attention             its weight
o_proj        attention, linear in V                V's output channels and bias
gate_up_proj  the norm before the feed-forward      its weight
down_proj     SiLU(gate) · up, linear in up         up's output channels and bias
lm_head       the final norm                        its weight
"""

from __future__ import annotations

from ..architecture import HEAD_WEIGHT, MigrationSite
from ..weights import Parameter
from .structure import LlamaSpec

EMBEDDING = "embed_tokens.weight"
FREQUENCIES = "self_attn.inv_freq"
QKV = "self_attn.qkv_proj"
OUTPUT = "self_attn.o_proj"
GATE_UP = "mlp.gate_up_proj"
DOWN = "mlp.down_proj"


def embed_parameters(model: LlamaSpec) -> tuple[Parameter, ...]:
    """Return the table of token embeddings."""
    shape = (model.vocab_size, model.hidden_size)
    return (Parameter(EMBEDDING, shape, (EMBEDDING,), is_table=True),)


def layer_parameters(model: LlamaSpec, prefix: str) -> tuple[Parameter, ...]:
    """Return a decoder layer's parameters; ``prefix`` precedes its tensors' names."""
    size, ffn_dim, head_dim = model.hidden_size, model.ffn_dim, model.head_dim
    query, key = model.num_heads * head_dim, model.num_kv_heads * head_dim

    def projection(
        name: str, in_size: int, out_sizes: tuple[int, ...], sources: tuple[str, ...], *, bias: bool
    ) -> tuple[Parameter, ...]:
        out_size = sum(out_sizes)
        weight = Parameter(
            f"{name}.weight",
            (in_size, out_size),
            tuple(f"{prefix}{source}.weight" for source in sources),
            transposed=True,
            is_product=True,
            out_sizes=out_sizes,
        )
        biases = tuple(f"{prefix}{source}.bias" for source in sources)
        vector = Parameter(f"{name}.bias", (out_size,), biases, out_sizes=out_sizes)
        return (weight, vector) if bias else (weight,)

    def norm(name: str, width: int) -> Parameter:
        return Parameter(
            f"{name}.weight", (width,), (f"{prefix}{name}.weight",), keeps_float32=True
        )

    head_norms = (norm("self_attn.q_norm", head_dim), norm("self_attn.k_norm", head_dim))
    three = tuple(f"self_attn.{each}_proj" for each in "qkv")
    two = ("mlp.gate_proj", "mlp.up_proj")
    return (
        norm("input_layernorm", size),
        *projection(QKV, size, (query, key, key), three, bias=model.qkv_bias),
        *(head_norms if model.query_key_norm else ()),
        _frequencies(model),
        *projection(OUTPUT, query, (size,), (OUTPUT,), bias=model.output_bias),
        norm("post_attention_layernorm", size),
        *projection(GATE_UP, size, (ffn_dim, ffn_dim), two, bias=model.mlp_bias),
        *projection(DOWN, ffn_dim, (size,), (DOWN,), bias=model.mlp_bias),
    )


def head_parameters(model: LlamaSpec) -> tuple[Parameter, ...]:
    """Return the final norm and the vocabulary product."""
    size, norm = model.hidden_size, "norm.weight"
    source = EMBEDDING if model.tie_word_embeddings else HEAD_WEIGHT
    return (
        Parameter(norm, (size,), (norm,), keeps_float32=True),
        Parameter(
            HEAD_WEIGHT, (size, model.vocab_size), (source,), transposed=True, is_product=True
        ),
    )


def _frequencies(model: LlamaSpec) -> Parameter:
    """Return the rotary frequencies, which no checkpoint need have."""
    values = tuple(float(each) for each in model.frequencies())
    return Parameter(FREQUENCIES, (len(values),), (), keeps_float32=True, values=values)


def layer_sites(model: LlamaSpec, prefix: str) -> dict[str, MigrationSite]:
    """Return the sites of a decoder layer's products."""

    def sources(name: str, *, bias: bool) -> tuple[str, ...]:
        parts = ("weight", "bias") if bias else ("weight",)
        return tuple(f"{prefix}{name}.{part}" for part in parts)

    output = MigrationSite(sources("self_attn.v_proj", bias=model.qkv_bias))
    if model.num_heads != model.num_kv_heads:
        output = MigrationSite(fixed="several query heads share a value head")
    return {
        f"{QKV}.weight": MigrationSite((f"{prefix}input_layernorm.weight",)),
        f"{OUTPUT}.weight": output,
        f"{GATE_UP}.weight": MigrationSite((f"{prefix}post_attention_layernorm.weight",)),
        f"{DOWN}.weight": MigrationSite(sources("mlp.up_proj", bias=model.mlp_bias)),
    }


def head_sites() -> dict[str, MigrationSite]:
    """Return the site of the vocabulary product."""
    return {HEAD_WEIGHT: MigrationSite(("norm.weight",))}
