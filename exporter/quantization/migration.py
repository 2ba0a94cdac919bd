"""Migration of outliers from activations into weights (SmoothQuant, arXiv 2211.10438, section 4).

For a product x @ W and one factor s per input channel, (x / s) @ (diag(s) W) is the same product.
What makes x divides by s as well as x itself, so that nothing is left to be done at run time:

    product   x comes from                       where 1 / s goes
    qkv_proj  the attention's layer norm         its weight and bias
    fc1       the feed-forward's layer norm      its weight and bias
    fc2       ReLU, which keeps positive factors fc1's output channels and bias
    out_proj  attention, linear in V             V's output channels and bias
    lm_head   the final norm, or project_out     its weight and bias, or output channels
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from ...engines.manifest import EngineKind, ModelSpec, json_digest
from ..architecture.weights import Array, Parameter, TensorReader, engine_name, engine_parameters
from .quantize import QUANTIZED_PARAMETERS

MIGRATION = "migration"  # among a manifest's ``source``: the digest of the factors

Factors = Mapping[str, Sequence[float]]
"""s of the input channels of products, by the names of their weights."""

_Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_QKV, _OUT_PROJ = "self_attn.qkv_proj", "self_attn.out_proj"
_VALUE = 2  # V's place among the sources of _QKV


class Migration(BaseModel):
    """The factors of a whole model, chosen with ``alpha``; an engine may have none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    alpha: float = Field(ge=0, le=1)
    layers: dict[str, dict[str, list[_Factor]]] = Field(default_factory=dict)
    head: dict[str, list[_Factor]] = Field(default_factory=dict)

    @property
    def digest(self) -> str:
        """SHA-256 of the content."""
        return json_digest(self.model_dump(mode="json"))

    def of(self, engine: str) -> Factors:
        """The factors of one engine, empty if there are none."""
        return self.head if engine == engine_name(EngineKind.HEAD) else self.layers.get(engine, {})

    def problems(self, model: ModelSpec) -> Iterator[str]:
        """Factors that ``model`` can't take: of other engines, products or widths."""
        engines = [(EngineKind.LAYER, index) for index in range(model.num_layers)]
        names = {engine_name(kind, index) for kind, index in engines}
        if unknown := sorted(self.layers.keys() - names):
            yield f"has factors of {', '.join(unknown)}; the model has {model.num_layers} layers"
        for kind, index in (*engines, (EngineKind.HEAD, None)):
            yield from _engine_problems(self.of(engine_name(kind, index)), kind, index, model)


def migrated_reader(
    reader: TensorReader,
    factors: Factors,
    kind: EngineKind,
    layer_index: int | None,
    model: ModelSpec,
) -> TensorReader:
    """The tensors of one engine with ``factors`` applied, one at a time as they are read.

    For this engine alone: a head that is tied to the embedding has factors, the embedding none.
    """
    if not factors:
        return reader
    parameters = {each.name: each for each in engine_parameters(kind, model, layer_index)}
    scales: dict[str, _Scales] = {}
    for product, values in factors.items():
        for source in parameters[product].sources:
            scales.setdefault(source, _Scales()).columns = np.array(values, np.float32)
        for source in _producers(product, parameters):
            scales.setdefault(source, _Scales()).rows = np.array(values, np.float32)
    return _MigratedReader(reader, scales)


def fixed_inputs(kind: EngineKind, model: ModelSpec) -> dict[str, str]:
    """The products of an engine of ``kind`` whose inputs no factor can divide, with the reason."""
    if kind is EngineKind.LAYER:
        return _fixed_layer_inputs(model)
    if kind is not EngineKind.HEAD or model.word_embed_proj_dim != model.hidden_size:
        return {}
    if not model.final_layer_norm:
        return {"lm_head.weight": "no layer norm comes before it"}
    return _unless_affine(model, "lm_head")


def _fixed_layer_inputs(model: ModelSpec) -> dict[str, str]:
    if not model.do_layer_norm_before:
        reason = "its input is the residual as well (norms come after)"
        fixed = {f"{_QKV}.weight": reason, "fc1.weight": reason}
    else:
        fixed = _unless_affine(model, _QKV, "fc1")
    if model.activation_function != "relu":
        function = model.activation_function.upper()
        fixed["fc2.weight"] = f"a factor does not pass through {function}"
    return fixed


def _unless_affine(model: ModelSpec, *products: str) -> dict[str, str]:
    if model.layer_norm_elementwise_affine:
        return {}
    return {f"{product}.weight": "the layer norm before it has no weight" for product in products}


def _producers(product: str, parameters: Mapping[str, Parameter]) -> Iterator[str]:
    """The tensors whose rows make the input channels of ``product``."""
    if product == f"{_OUT_PROJ}.weight":
        for part in ("weight", "bias"):
            if (packed := parameters.get(f"{_QKV}.{part}")) is not None:
                yield packed.sources[_VALUE]
        return
    layer = {
        f"{_QKV}.weight": "self_attn_layer_norm",
        "fc1.weight": "final_layer_norm",
        "fc2.weight": "fc1",
        "lm_head.weight": "final_layer_norm",
    }[product]
    if product == "lm_head.weight" and "project_out.weight" in parameters:
        layer = "project_out"
    for part in ("weight", "bias"):
        if (parameter := parameters.get(f"{layer}.{part}")) is not None:
            yield from parameter.sources


def _engine_problems(
    factors: Factors, kind: EngineKind, layer_index: int | None, model: ModelSpec
) -> Iterator[str]:
    name = engine_name(kind, layer_index)
    known, fixed = QUANTIZED_PARAMETERS[kind], fixed_inputs(kind, model)
    widths = {each.name: each.shape[0] for each in engine_parameters(kind, model, layer_index)}
    for product, values in factors.items():
        if product not in known:
            yield f"{name} has factors of {product}; known: {', '.join(known)}"
        elif product in fixed:
            yield f"{name} has factors of {product}, which takes none: {fixed[product]}"
        elif len(values) != widths[product]:
            yield f"{name} has {len(values)} factors of {product}; expected {widths[product]}"


@dataclass
class _Scales:
    """Of a stored tensor [out, in] or [out]: multiply ``columns``, divide ``rows``."""

    rows: NDArray[np.float32] | None = field(default=None)
    columns: NDArray[np.float32] | None = field(default=None)


class _MigratedReader:
    """A TensorReader whose tensors are all float32, as factors need, whatever is stored."""

    def __init__(self, reader: TensorReader, scales: Mapping[str, _Scales]) -> None:
        self._reader = reader
        self._scales = scales

    def read(self, name: str) -> Array:
        """The tensor, in memory of its own where factors apply."""
        array = self._reader.read(name)
        if (scales := self._scales.get(name)) is None:
            return array.astype(np.float32, copy=False)
        scaled = array.astype(np.float32)
        if scales.columns is not None:
            scaled *= scales.columns
        if scales.rows is not None:
            scaled /= scales.rows.reshape(-1, *(1,) * (scaled.ndim - 1))
        return scaled
