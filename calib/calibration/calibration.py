"""``calibrate``: measure the ranges of activations, layer by layer, on real texts."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from pydantic import Field
from typing_extensions import override

from ...engines.bundle import replace_file
from ...engines.checking import FrozenModel
from ...engines.host.events import Events
from ...engines.manifest import EngineKind
from ...exporter.architecture.architecture import quantized_parameters
from ...exporter.architecture.weights import TensorReader, engine_name
from ...exporter.quantization.migration import Migration, fixed_inputs
from ...exporter.quantization.ranges import ActivationRanges
from ..layerwise.engines import (
    STATIC_FORMATS,
    StaticFormat,
    load_engine,
    quantized_products,
    replaced,
)
from ..layerwise.run import LayerwiseRun
from .config import CalibrationConfig
from .migration import Migrator
from .plan import CalibrationPlan, plan_calibration
from .products import measure_errors, measure_ranges

HEAD = engine_name(EngineKind.HEAD)


class ProductReport(FrozenModel):
    """Figures of one product; see InputRange and ProductErrors."""

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
    percentile: float
    migration: MigrationReport | None
    texts: int
    tokens: int = Field(description="observed, prompts included")
    products: tuple[ProductReport, ...]
    loss: LossReport
    warnings: tuple[str, ...]

    @property
    def ranges(self) -> ActivationRanges:
        """The ranges in the form that export and build read."""
        layers: dict[str, dict[str, float]] = {}
        head: dict[str, float] = {}
        for product in self.products:
            own = head if product.engine == HEAD else layers.setdefault(product.engine, {})
            own[product.weight] = product.range
        migration = None if self.migration is None else self.migration.factors
        return ActivationRanges(layers=layers, head=head, migration=migration)


def calibrate(config: CalibrationConfig, events: Events | None = None) -> CalibrationReport:
    """Measure activations, choose ranges, write them to ``config.output`` and return a report.

    Texts are teacher-forced at scheduled depth: a product sees only the tokens that run its layer.
    Memory holds one engine's float32 weights and a quantised copy, and the hidden states of at most
    ``config.max_tokens`` tokens (three times for held-out texts, five times with ``migrate``).

    Raises SkipDecError before any work if something is wrong (see ``plan_calibration``), and
    CheckpointError if an activation is NaN or infinite.
    """
    CalibrationConfig.require(config)
    plan = plan_calibration(config)
    events = events or Events()
    events.planned(plan.summary, plan.warnings)
    report = run_calibration(plan, events)
    indent = 2 if report.migration is None else None  # there are many factors
    text = report.ranges.model_dump_json(indent=indent, exclude_none=True) + "\n"
    replace_file(config.output.absolute(), text.encode())
    return report


def run_calibration(plan: CalibrationPlan, events: Events) -> CalibrationReport:
    """Measure as ``calibrate`` does, without writing a file."""
    with torch.inference_mode():
        return _Calibrator(plan).run(events)


class _Calibrator(LayerwiseRun):
    """Runs the texts exactly and in every static format."""

    def __init__(self, plan: CalibrationPlan) -> None:
        super().__init__(plan)
        self._plan = plan
        self._static = {name: self.exact.copy() for name in STATIC_FORMATS}
        alpha = plan.config.migrate
        self._migrator = None if alpha is None else Migrator(plan, self.exact, alpha)
        self._products: list[ProductReport] = []

    def run(self, events: Events) -> CalibrationReport:
        """Run all layers, then the head."""
        self.run_engines("calibrating", events)
        return self._report()

    @override
    def run_engine(self, kind: EngineKind, index: int | None) -> None:
        """Choose an engine's ranges, measure its products and run its static formats in turn."""
        name, model = engine_name(kind, index), self.model
        reader: TensorReader = self.reader
        if self._migrator is not None:
            reader = self._migrator.migrated(kind, index, self.observed)
        module = load_engine(kind, model, reader, index)
        self.exact.run(index, module)
        read = partial(self.observed.read, index, module)
        products = quantized_parameters(kind, model)
        inputs = measure_ranges(name, products, module, read, self._plan.config.percentile)
        ranges = {weight: found.range for weight, found in inputs.items()}
        for static_format, states in self._static.items():
            quantized = quantized_products(module, static_format, ranges)
            if static_format == "int8":
                advance = partial(self.observed.run, index, module)
                errors = measure_errors(module, quantized, advance)
            with replaced(module, quantized):
                states.run(index, module)
        self._products += [
            ProductReport(engine=name, weight=weight, **vars(found), **vars(errors[weight]))
            for weight, found in inputs.items()
        ]

    def _report(self) -> CalibrationReport:
        plan, migration = self._plan, None
        if self._migrator is not None:
            kinds = (EngineKind.LAYER, EngineKind.HEAD)
            layer, head = (fixed_inputs(kind, plan.model) for kind in kinds)
            factors = self._migrator.migration
            migration = MigrationReport(
                alpha=factors.alpha,
                left_out=layer | head,
                static_without=self._migrator.losses,
                factors=factors,
            )
        return CalibrationReport(
            output=plan.config.output,
            model=plan.model.name,
            schedule=plan.schedule_text,
            percentile=plan.config.percentile,
            migration=migration,
            texts=len(plan.observed),
            tokens=len(self.observed.texts),
            products=tuple(self._products),
            loss=LossReport(
                texts=len(plan.held_out),
                tokens=len(self.exact.head_losses),
                float32=self.exact.mean_loss,
                static={name: states.mean_loss for name, states in self._static.items()},
            ),
            warnings=plan.warnings,
        )
