"""Migration of outliers from activations into weights (SmoothQuant, arXiv 2211.10438, section 4).

For a product x @ W and a factor s per input channel, (x / s) @ (diag(s) W) is the same product.
Instead of x, the tensors that produce x are divided by s, so nothing is left to do at run time.
``Decoder.sites`` names these tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ...engines.checking import FrozenModel
from ...engines.manifest import EngineKind, ModelSpec, json_digest
from ...engines.memory import Array
from ..architecture.architecture import decoder_of, engine_parameters
from ..architecture.weights import TensorReader, engine_name

MIGRATION = "migration"  # key of the factors' digest in a manifest's ``source``

Factors = Mapping[str, Sequence[float]]
"""Factors s of each product's input channels, by the name of its weight."""

_Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Migration(FrozenModel):
    """The factors of a whole model, chosen with ``alpha``; an engine may have none."""

    alpha: float = Field(ge=0, le=1)
    layers: dict[str, dict[str, list[_Factor]]] = Field(default_factory=dict)
    head: dict[str, list[_Factor]] = Field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the content."""
        return json_digest(self.model_dump(mode="json"))

    def of(self, engine: str) -> Factors:
        """Return the factors of one engine; empty if it has none."""
        return self.head if engine == engine_name(EngineKind.HEAD) else self.layers.get(engine, {})

    def problems(self, model: ModelSpec) -> Iterator[str]:
        """Yield the factors that do not fit ``model``: wrong engines, products or widths."""
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
    """Return a reader of one engine's tensors that applies ``factors`` to each tensor it reads.

    The factors apply to this engine alone: a head tied to the embedding has factors, while the
    embedding has none.
    """
    if not factors:
        return reader
    parameters = {each.name: each for each in engine_parameters(kind, model, layer_index)}
    sites = decoder_of(model).sites(kind, layer_index)
    scales: dict[str, _Scales] = {}
    for product, values in factors.items():
        for source in parameters[product].sources:
            scales.setdefault(source, _Scales()).columns = np.array(values, np.float32)
        for source in sites[product].producers:
            scales.setdefault(source, _Scales()).rows = np.array(values, np.float32)
    return _MigratedReader(reader, scales)


def fixed_inputs(kind: EngineKind, model: ModelSpec) -> dict[str, str]:
    """Return the products of an engine of ``kind`` that can't have factors, with the reason."""
    sites = decoder_of(model).sites(kind, 0 if kind is EngineKind.LAYER else None)
    return {product: site.fixed for product, site in sites.items() if site.fixed is not None}


def _engine_problems(
    factors: Factors, kind: EngineKind, layer_index: int | None, model: ModelSpec
) -> Iterator[str]:
    name = engine_name(kind, layer_index)
    fixed = fixed_inputs(kind, model)
    parameters = engine_parameters(kind, model, layer_index)
    widths = {each.name: each.shape[0] for each in parameters if each.is_product}
    for product, values in factors.items():
        if product not in widths:
            yield f"{name} has factors of {product}; known: {', '.join(widths)}"
        elif product in fixed:
            yield f"{name} has factors of {product}, which takes none: {fixed[product]}"
        elif len(values) != widths[product]:
            yield f"{name} has {len(values)} factors of {product}; expected {widths[product]}"


@dataclass
class _Scales:
    """Factors for a stored tensor [out, in] or [out]: multiply ``columns``, divide ``rows``."""

    rows: NDArray[np.float32] | None = None
    columns: NDArray[np.float32] | None = None


class _MigratedReader:
    """A TensorReader that applies factors and returns float32, whatever type is stored."""

    def __init__(self, reader: TensorReader, scales: Mapping[str, _Scales]) -> None:
        self._reader = reader
        self._scales = scales

    def read(self, name: str) -> Array:
        """Return the tensor, as a copy if factors apply."""
        array = self._reader.read(name)
        if (scales := self._scales.get(name)) is None:
            return array.astype(np.float32, copy=False)
        scaled = array.astype(np.float32)
        if scales.columns is not None:
            scaled *= scales.columns
        if scales.rows is not None:
            scaled /= scales.rows.reshape(-1, *(1,) * (scaled.ndim - 1))
        return scaled
