"""Checkpoint tensors of OPT's engines, and those that can absorb factors s of a product's input x.

product   x comes from                       1 / s is absorbed by
qkv_proj  the attention's layer norm         its weight and bias
fc1       the feed-forward's layer norm      its weight and bias
fc2       ReLU, which keeps positive factors fc1's output channels and bias
out_proj  attention, linear in V             V's output channels and bias
lm_head   the final norm, or project_out     its weight and bias, or output channels
"""

from __future__ import annotations

from collections.abc import Mapping

from ..architecture import HEAD_WEIGHT, MigrationSite
from ..weights import Parameter
from .structure import OptSpec

POSITION_OFFSET = 2  # rows of the position table before position 0
_VALUE = 2  # index of V among the sources of qkv_proj
EMBEDDING = "decoder.embed_tokens.weight"


def embed_parameters(model: OptSpec) -> tuple[Parameter, ...]:
    """Return both tables, and project_in if present."""
    width, hidden_size = model.word_embed_proj_dim, model.hidden_size
    tokens = "embed_tokens.weight"
    positions = "embed_positions.weight"
    table_rows = model.max_position_embeddings + POSITION_OFFSET
    return (
        Parameter(tokens, (model.vocab_size, width), (f"decoder.{tokens}",), is_table=True),
        Parameter(positions, (table_rows, hidden_size), (f"decoder.{positions}",), is_table=True),
        *_residual_projection("project_in", width, hidden_size),
    )


def layer_parameters(model: OptSpec, prefix: str) -> tuple[Parameter, ...]:
    """Return a decoder layer's parameters; ``prefix`` precedes its tensors' names."""
    size, ffn_dim = model.hidden_size, model.ffn_dim

    def projection(
        name: str, in_size: int, out_size: int, sources: tuple[str, ...]
    ) -> tuple[Parameter, ...]:
        paths = [prefix + source for source in sources]
        weights = tuple(f"{path}.weight" for path in paths)
        biases = tuple(f"{path}.bias" for path in paths)
        shape = (in_size, out_size)
        weight = Parameter(f"{name}.weight", shape, weights, transposed=True, is_product=True)
        bias = Parameter(f"{name}.bias", (out_size,), biases)
        return (weight, bias) if model.enable_bias else (weight,)

    attention = "self_attn."
    qkv_sources = tuple(attention + name for name in ("q_proj", "k_proj", "v_proj"))
    out_proj = attention + "out_proj"
    return (
        *_layer_norm(model, "self_attn_layer_norm", prefix),
        *projection(attention + "qkv_proj", size, 3 * size, qkv_sources),
        *projection(out_proj, size, size, (out_proj,)),
        *_layer_norm(model, "final_layer_norm", prefix),
        *projection("fc1", size, ffn_dim, ("fc1",)),
        *projection("fc2", ffn_dim, size, ("fc2",)),
    )


def head_parameters(model: OptSpec) -> tuple[Parameter, ...]:
    """Return the final norm and project_out, if present, and the vocabulary product."""
    width = model.word_embed_proj_dim
    tied = model.tie_word_embeddings
    source = EMBEDDING if tied else HEAD_WEIGHT
    norm = _layer_norm(model, "final_layer_norm", "decoder.") if model.final_layer_norm else ()
    return (
        *norm,
        *_residual_projection("project_out", model.hidden_size, width),
        Parameter(
            HEAD_WEIGHT, (width, model.vocab_size), (source,), transposed=True, is_product=True
        ),
    )


def _layer_norm(model: OptSpec, name: str, prefix: str) -> tuple[Parameter, ...]:
    shape = (model.hidden_size,)
    if not model.layer_norm_elementwise_affine:
        return (Parameter(f"{name}.weight", shape, (), keeps_float32=True),)
    return tuple(
        Parameter(f"{name}.{part}", shape, (f"{prefix}{name}.{part}",), keeps_float32=True)
        for part in ("weight", "bias")
    )


def _residual_projection(name: str, in_size: int, out_size: int) -> tuple[Parameter, ...]:
    """Return the 350m's project_in or project_out; nothing if both sizes are equal."""
    if in_size == out_size:
        return ()
    path = f"{name}.weight"
    return (Parameter(path, (in_size, out_size), (f"decoder.{path}",), transposed=True),)


Parameters = Mapping[str, Parameter]
"""Parameters of one engine, by name."""


def layer_sites(model: OptSpec, parameters: Parameters) -> dict[str, MigrationSite]:
    """Return the sites of a decoder layer's products."""
    sites = {
        "self_attn.qkv_proj.weight": _after_norm(model, parameters, "self_attn_layer_norm"),
        "self_attn.out_proj.weight": MigrationSite(
            tuple(
                parameters[name].sources[_VALUE]
                for name in ("self_attn.qkv_proj.weight", "self_attn.qkv_proj.bias")
                if name in parameters
            )
        ),
        "fc1.weight": _after_norm(model, parameters, "final_layer_norm"),
        "fc2.weight": MigrationSite(_sources(parameters, "fc1")),
    }
    if not model.do_layer_norm_before:
        reason = "its input is the residual as well (norms come after)"
        sites |= dict.fromkeys(
            ("self_attn.qkv_proj.weight", "fc1.weight"), MigrationSite(fixed=reason)
        )
    if model.activation_function != "relu":
        function = model.activation_function.upper()
        sites["fc2.weight"] = MigrationSite(fixed=f"a factor does not pass through {function}")
    return sites


def head_sites(model: OptSpec, parameters: Parameters) -> dict[str, MigrationSite]:
    """Return the site of the vocabulary product."""
    if "project_out.weight" in parameters:
        site = MigrationSite(_sources(parameters, "project_out"))
    elif not model.final_layer_norm:
        site = MigrationSite(fixed="no layer norm comes before it")
    else:
        site = _after_norm(model, parameters, "final_layer_norm")
    return {HEAD_WEIGHT: site}


def _after_norm(model: OptSpec, parameters: Parameters, norm: str) -> MigrationSite:
    if not model.layer_norm_elementwise_affine:
        return MigrationSite(fixed="the layer norm before it has no weight")
    return MigrationSite(_sources(parameters, norm))


def _sources(parameters: Parameters, name: str) -> tuple[str, ...]:
    """Return the checkpoint tensors of a norm's or product's weight and bias."""
    parts = (parameters.get(f"{name}.{part}") for part in ("weight", "bias"))
    return tuple(source for each in parts if each is not None for source in each.sources)
