"""``calibrate``: measure the ranges of activations, layer by layer, on real texts."""

from __future__ import annotations

from dataclasses import replace
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
from ..layerwise.texts import HiddenStates, PackedTexts
from .config import CalibrationConfig, RangeMethod
from .migration import Migrator
from .plan import CalibrationPlan, generate_completions, plan_calibration
from .products import measure_errors, measure_ranges

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


def calibrate(config: CalibrationConfig, events: Events | None = None) -> CalibrationReport:
    """Measure activations, choose ranges, write them to ``config.output`` and return a report.

    If a bundle is to write the completions, it does so first.

    Texts are teacher-forced at scheduled depth: a product sees only the tokens that run its layer.
    Memory at any time: one engine's float32 weights and a quantised copy, the hidden states of at
    most ``config.max_tokens`` tokens (three times for held-out texts, five times with ``migrate``),
    and those of ``num_by_layer`` texts once per layer.

    Raises SkipDecError before any work if something is wrong, see ``plan_calibration``;
    CheckpointError if an activation is NaN or infinite.
    """
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
    if plan.writer is not None:
        assert plan.config.completion_tokens is not None
        events.stage("generating", len(plan.observed))
        written = generate_completions(
            plan.writer,
            plan.observed,
            plan.schedule,
            plan.config.completion_tokens,
            events.advance,
        )
        plan = replace(plan, observed=written)
    with torch.inference_mode():
        return _Calibrator(plan).run(events)


class _Calibrator(LayerwiseRun):
    """Runs the texts exactly and in every static format."""

    def __init__(self, plan: CalibrationPlan) -> None:
        super().__init__(plan)
        config = self._config = plan.config
        self._plan = plan
        few = plan.held_out[: config.num_by_layer]
        self._few = PackedTexts(few, plan.schedule, config.batch_tokens) if few else None
        self._static = {name: self.exact.copy() for name in STATIC_FORMATS}
        alpha = config.migrate
        self._migrator = None if alpha is None else Migrator(plan, self.exact, alpha)
        self._alone: dict[str, HiddenStates] = {}  # by engine name, with that engine alone in int8
        self._products: list[ProductReport] = []

    def run(self, events: Events) -> CalibrationReport:
        """Run all layers, then the head."""
        self.run_engines("calibrating", events)
        return self._report()

    @override
    def run_engine(self, kind: EngineKind, index: int | None) -> None:
        """Choose an engine's ranges, measure its products and run its static formats in turn."""
        name, config, model = engine_name(kind, index), self._config, self.model
        reader: TensorReader = self.reader
        if self._migrator is not None:
            reader = self._migrator.migrated(kind, index, self.observed)
        module = load_engine(kind, model, reader, index)
        for states in self._alone.values():
            states.run(index, module)
        if self._few is not None:
            self._alone[name] = self.exact.copy(self._few)
        self.exact.run(index, module)
        read = partial(self.observed.read, index, module)
        products = quantized_parameters(kind, model)
        inputs = measure_ranges(name, products, module, read, config.method, config.percentage)
        ranges = {weight: found.range for weight, found in inputs.items()}
        for static_format, states in self._static.items():
            quantized = quantized_products(module, static_format, ranges)
            if static_format == "int8":
                advance = partial(self.observed.run, index, module)
                errors = measure_errors(module, quantized, advance)
            with replaced(module, quantized):
                states.run(index, module)
                if static_format == "int8" and name in self._alone:
                    self._alone[name].run(index, module)
        self._products += [
            ProductReport(engine=name, weight=weight, **vars(found), **vars(errors[weight]))
            for weight, found in inputs.items()
        ]

    def _report(self) -> CalibrationReport:
        plan, config, losses = self._plan, self._plan.config, self.exact.head_losses
        few = 0 if self._few is None else len(self._few.targets)
        own = float(losses[:few].mean()) if few else 0.0
        generated = migration = None
        if plan.writer is not None:
            assert config.generate_with is not None
            assert config.completion_tokens is not None
            generated = GenerationReport(
                bundle=config.generate_with,
                digest=plan.writer.manifest.digest,
                max_tokens=config.completion_tokens,
                tokens=sum(len(text.completion_token_ids) for text in plan.observed),
            )
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
            output=config.output,
            model=plan.model.name,
            schedule=plan.schedule_text,
            method=config.method,
            percentile=config.percentage if config.method == "percentile" else None,
            generated=generated,
            migration=migration,
            texts=len(plan.observed),
            tokens=len(self.observed.texts),
            products=tuple(self._products),
            loss=LossReport(
                texts=len(plan.held_out),
                tokens=len(losses),
                float32=self.exact.mean_loss,
                static={name: states.mean_loss for name, states in self._static.items()},
            ),
            by_layer_tokens=few,
            by_layer=tuple(
                EngineLossReport(
                    engine=name, loss=states.mean_loss, increase=states.mean_loss - own
                )
                for name, states in self._alone.items()
            ),
            warnings=plan.warnings,
        )
