"""Result of a calibration, for JSON and for tables: ranges, errors of products, losses."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from ...engines.checking import FrozenModel
from ...engines.manifest import EngineKind
from ...exporter.architecture.weights import engine_name
from ...exporter.quantization.migration import Migration
from ...exporter.quantization.ranges import ActivationRanges
from ..layerwise.engines import StaticFormat
from .config import RangeMethod

HEAD = engine_name(EngineKind.HEAD)


class ProductReport(FrozenModel):
    """Figures of one product, see InputRange and ProductErrors."""

    engine: str
    weight: str
    tokens: int = Field(description="observed tokens that ran the product")
    maximum: float
    range: float
    outlier_ratio: float
    input_error: float
    output_error: float


class LossReport(FrozenModel):
    """Cross-entropy of held-out completions at scheduled depth, in nats per token."""

    texts: int
    tokens: int
    float32: float
    static: dict[StaticFormat, float] = Field(description="weights and activations of all engines")


class EngineLossReport(FrozenModel):
    """Loss with one engine alone in static int8."""

    engine: str
    loss: float
    increase: float = Field(description="over float32 on the same tokens")


class GenerationReport(FrozenModel):
    """Origin of generated completions: written greedily, at the calibration's schedule."""

    bundle: Path
    digest: str = Field(description="the bundle's manifest digest")
    max_tokens: int
    tokens: int = Field(description="generated, ends of text included")


class MigrationReport(FrozenModel):
    """Factors moved from activations into weights, and the static losses without them."""

    alpha: float
    left_out: dict[str, str] = Field(description="products without factors, and why")
    static_without: dict[StaticFormat, float] = Field(description="losses, as LossReport's static")
    factors: Migration = Field(exclude=True, repr=False)


class CalibrationReport(FrozenModel):
    """Report of a finished calibration."""

    output: Path
    model: str
    schedule: str
    method: RangeMethod
    percentile: float | None
    generated: GenerationReport | None = Field(description="None: completions come from the data")
    migration: MigrationReport | None
    texts: int
    tokens: int = Field(description="observed, prompts included")
    products: tuple[ProductReport, ...]
    loss: LossReport
    by_layer_tokens: int
    by_layer: tuple[EngineLossReport, ...]
    warnings: tuple[str, ...]

    @property
    def ranges(self) -> ActivationRanges:
        """Ranges in the form that export and build take."""
        layers: dict[str, dict[str, float]] = {}
        head: dict[str, float] = {}
        for product in self.products:
            own = head if product.engine == HEAD else layers.setdefault(product.engine, {})
            own[product.weight] = product.range
        migration = None if self.migration is None else self.migration.factors
        return ActivationRanges(layers=layers, head=head, migration=migration)

    @property
    def worst(self) -> EngineLossReport | None:
        """Engine whose int8 products raise the loss most; None if this was not measured."""
        return max(self.by_layer, key=lambda entry: entry.increase, default=None)
