"""``calibrate``: measure the ranges of activations, layer by layer, on real texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from ...engines.bundle import replace_file
from ...engines.host.events import Events
from ...engines.manifest import EngineKind, ModelSpec
from ...exporter.architecture.architecture import quantized_parameters
from ...exporter.architecture.weights import TensorReader, engine_name
from ...exporter.quantization.migration import fixed_inputs
from ..layerwise.engines import (
    STATIC_FORMATS,
    QuantizedProjection,
    StaticFormat,
    load_engine,
    quantized_products,
    replaced,
)
from ..layerwise.texts import HiddenStates, PackedTexts
from .config import CalibrationConfig
from .generation import generate_completions
from .migration import Migrator
from .plan import CalibrationPlan, plan_calibration
from .products import measure_errors, measure_ranges
from .report import (
    HEAD,
    CalibrationReport,
    EngineLossReport,
    GenerationReport,
    LossReport,
    MigrationReport,
    ProductReport,
)

Products = Mapping[str, QuantizedProjection]


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


class _Calibrator:
    """Carries the hidden states of all texts and formats from engine to engine."""

    def __init__(self, plan: CalibrationPlan) -> None:
        self._plan = plan
        self._reader = plan.checkpoint.reader
        config, schedule = plan.config, plan.schedule
        texts = PackedTexts(plan.observed, schedule, config.batch_tokens)
        held_out = PackedTexts(plan.held_out, schedule, config.batch_tokens)
        few = plan.held_out[: config.num_by_layer]
        self._few = PackedTexts(few, schedule, config.batch_tokens) if few else None
        embedding = load_engine(EngineKind.EMBED, plan.model, self._reader)
        self._observed = HiddenStates.embed(texts, embedding)
        self._float = HiddenStates.embed(held_out, embedding)
        self._static = {name: self._float.copy() for name in STATIC_FORMATS}
        alpha = config.migrate
        self._migrator = None if alpha is None else Migrator(plan, self._float, alpha)
        self._alone: dict[str, HiddenStates] = {}  # by engine name, with that engine alone in int8
        self._products: list[ProductReport] = []

    def run(self, events: Events) -> CalibrationReport:
        """Run all layers, then the head."""
        events.stage("calibrating", self._plan.model.num_layers + 1)
        for index in range(self._plan.model.num_layers):
            self._layer(index)
            events.advance(engine_name(EngineKind.LAYER, index))
        report = self._head()
        events.advance(HEAD)
        return report

    def _layer(self, index: int) -> None:
        kind, name = EngineKind.LAYER, engine_name(EngineKind.LAYER, index)
        reader: TensorReader = self._reader
        if self._migrator is not None:
            reader = self._migrator.layer(index, self._observed)
        layer = load_engine(kind, self._plan.model, reader, index)

        def run_static(static_format: StaticFormat) -> None:
            self._static[static_format].advance(index, layer)
            if static_format == "int8" and name in self._alone:
                self._alone[name].advance(index, layer)

        for states in self._alone.values():
            states.advance(index, layer)
        if self._few is not None:
            self._alone[name] = self._float.copy(self._few)
        self._float.advance(index, layer)
        self._quantize(
            name,
            kind,
            layer,
            lambda: self._observed.read(index, layer),
            lambda: self._observed.advance(index, layer),
            run_static,
        )

    def _head(self) -> CalibrationReport:
        kind = EngineKind.HEAD
        reader: TensorReader = self._reader
        if self._migrator is not None:
            reader = self._migrator.head(self._observed)
        head = load_engine(kind, self._plan.model, reader)
        losses = self._float.losses(head)  # [R]
        alone = {name: states.losses(head) for name, states in self._alone.items()}
        static: dict[StaticFormat, Tensor] = {}

        def run_static(static_format: StaticFormat) -> None:
            static[static_format] = self._static[static_format].losses(head)
            if static_format == "int8" and self._few is not None:
                alone[HEAD] = self._float.copy(self._few).losses(head)

        def observe() -> None:
            self._observed.losses(head)

        self._quantize(HEAD, kind, head, observe, observe, run_static)
        return self._report(losses, static, alone)

    def _quantize(
        self,
        engine: str,
        kind: EngineKind,
        module: nn.Module,
        observe: Callable[[], None],
        observe_and_move: Callable[[], None],
        run_static: Callable[[StaticFormat], None],
    ) -> None:
        """Choose an engine's ranges, measure its products and run its static formats in turn."""
        config = self._plan.config
        names = quantized_parameters(kind, self._plan.model)
        inputs = measure_ranges(engine, names, module, observe, config.method, config.percentage)
        ranges = {weight: found.range for weight, found in inputs.items()}
        for static_format in STATIC_FORMATS:
            products = quantized_products(module, static_format, ranges)
            if static_format == "int8":
                errors = measure_errors(module, products, observe_and_move)
            with replaced(module, products):
                run_static(static_format)
        self._products += [
            ProductReport(
                engine=engine,
                weight=weight,
                tokens=errors[weight].tokens,
                maximum=found.maximum,
                range=found.range,
                outlier_ratio=found.outlier_ratio,
                input_error=errors[weight].input,
                output_error=errors[weight].output,
            )
            for weight, found in inputs.items()
        ]

    def _report(
        self, losses: Tensor, static: Mapping[StaticFormat, Tensor], alone: Mapping[str, Tensor]
    ) -> CalibrationReport:
        plan, config = self._plan, self._plan.config
        few = 0 if self._few is None else len(self._few.targets)
        own = float(losses[:few].mean()) if few else 0.0
        return CalibrationReport(
            output=config.output,
            model=plan.model.name,
            schedule=plan.schedule_text,
            method=config.method,
            percentile=config.percentage if config.method == "percentile" else None,
            generated=_generation(plan),
            migration=None if self._migrator is None else _migration(plan.model, self._migrator),
            texts=len(plan.observed),
            tokens=len(self._observed.texts),
            products=tuple(self._products),
            loss=LossReport(
                texts=len(plan.held_out),
                tokens=len(losses),
                float32=float(losses.mean()),
                static={name: float(values.mean()) for name, values in static.items()},
            ),
            by_layer_tokens=few,
            by_layer=tuple(
                EngineLossReport(
                    engine=name, loss=float(values.mean()), increase=float(values.mean()) - own
                )
                for name, values in alone.items()
            ),
            warnings=plan.warnings,
        )


def _migration(model: ModelSpec, migrator: Migrator) -> MigrationReport:
    factors = migrator.migration
    return MigrationReport(
        alpha=factors.alpha,
        left_out=fixed_inputs(EngineKind.LAYER, model) | fixed_inputs(EngineKind.HEAD, model),
        static_without=migrator.losses,
        factors=factors,
    )


def _generation(plan: CalibrationPlan) -> GenerationReport | None:
    if plan.writer is None:
        return None
    assert plan.config.generate_with is not None
    assert plan.config.completion_tokens is not None
    return GenerationReport(
        bundle=plan.config.generate_with,
        digest=plan.writer.manifest.digest,
        max_tokens=plan.config.completion_tokens,
        tokens=sum(len(text.completion_token_ids) for text in plan.observed),
    )
