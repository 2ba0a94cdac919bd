"""Tensors that produce the inputs of OPT's products and can absorb factors s.

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

_VALUE = 2  # index of V among the sources of qkv_proj

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
