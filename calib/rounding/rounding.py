"""``round_weights``: from a checkpoint and real texts to one whose weights lie on an int4 grid."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ...engines.bundle.place import SCHEDULE_NAME, TOKENIZER_NAME
from ...engines.checking import Problems
from ...engines.errors import UsageError
from ...engines.host.events import Events
from ...engines.manifest import EngineKind, ModelSpec
from ...engines.sealing import sealed_text
from ...exporter.architecture.architecture import engine_parameters
from ...exporter.architecture.weights import engine_name
from ...runtime.schedule.resolved import schedule_file
from ..layerwise.engines import load_engine
from ..layerwise.plan import LayerwisePlan, open_texts
from ..layerwise.texts import HiddenStates, PackedTexts
from .config import RoundingConfig
from .engines import RoundedEngine, verbatim_tensors
from .files import CheckpointFiles, rounded_place
from .grid import GRIDS
from .report import REPORT_NAME, RoundedLoss, RoundedProduct, RoundingReport


def round_weights(config: RoundingConfig, events: Events | None = None) -> RoundingReport:
    """Round all products' weights by GPTQ, write the checkpoint ``config.output``, and return what
    it costs.

    Exporting that with ``--quantize int4`` and the same target and block size rounds to nearest,
    and so gives the very codes that were chosen here.

    Texts are teacher-forced at scheduled depth: a token that does not run a layer has no say in
    its weights. Products are rounded one after another, each on what those before it, rounded,
    make of the texts. In memory at a time: one engine's float32 weights three times, four float32
    matrices [K, K] for a product of K inputs (fc2 of opt-6.7b: 4 GiB), and hidden states of at
    most ``config.max_tokens`` tokens (those of held-out texts three times).

    Raises SkipDecError before any work if something is wrong, see ``plan_rounding``;
    CheckpointError if an activation is NaN or infinite. Nothing is left behind then.
    """
    plan = plan_rounding(config)
    events = events or Events()
    events.planned(plan.summary, plan.warnings)
    return run_rounding(plan, events)


def run_rounding(plan: RoundingPlan, events: Events) -> RoundingReport:
    """Do what ``round_weights`` does, with what ``plan`` holds."""
    source = plan.checkpoint.directory
    assert source is not None  # only random weights lie nowhere
    place = rounded_place(plan.config.output)
    with place.replaced(force=plan.config.force) as directory, torch.inference_mode():
        files = CheckpointFiles(directory)
        report = _Rounder(plan, files).run(events)
        document = json.loads((source / "config.json").read_bytes())
        if plan.config.untie_head:
            document["tie_word_embeddings"] = False
        others = {REPORT_NAME: report.model_dump_json(indent=2).encode() + b"\n"}
        if (tokenizer := plan.checkpoint.tokenizer_json) is not None:
            others[TOKENIZER_NAME] = tokenizer
        if plan.has_schedule:
            others[SCHEDULE_NAME] = sealed_text(schedule_file(plan.schedule)).encode()
        files.finish(source, document, others)
    return report


class _Rounder:
    """Carries the hidden states of all texts and variants from engine to engine."""

    def __init__(self, plan: RoundingPlan, files: CheckpointFiles) -> None:
        self._plan = plan
        self._files = files
        self._reader = plan.checkpoint.reader
        config, schedule = plan.config, plan.schedule
        self._make_grid = partial(GRIDS[config.target], config.block_size)
        texts = PackedTexts(plan.observed, schedule, config.batch_tokens)
        held_out = PackedTexts(plan.held_out, schedule, config.batch_tokens)
        embedding = load_engine(EngineKind.EMBED, plan.model, self._reader)
        self._observed = HiddenStates.embed(texts, embedding)
        self._exact = HiddenStates.embed(held_out, embedding)
        self._nearest, self._rounded = self._exact.copy(), self._exact.copy()
        self._products: list[RoundedProduct] = []

    def run(self, events: Events) -> RoundingReport:
        """The embedding as it is, all layers, then the head."""
        self._files.add("embed", verbatim_tensors(EngineKind.EMBED, self._plan.model, self._reader))
        events.stage("rounding", self._plan.model.num_layers + 1)
        for index in range(self._plan.model.num_layers):
            events.advance(self._layer(index))
        loss = self._head()
        events.advance("head")
        return self._report(loss)

    def _layer(self, index: int) -> str:
        plan = self._plan
        engine = RoundedEngine(EngineKind.LAYER, plan.model, self._reader, self._make_grid, index)
        layer = engine.module
        engine.round(lambda: self._observed.read(index, layer), plan.config.damping)
        self._observed.advance(index, layer)
        self._rounded.advance(index, layer)
        engine.use(engine.nearest)
        self._nearest.advance(index, layer)
        self._products += engine.measure(lambda: self._exact.advance(index, layer))
        self._files.add(engine.name, engine.tensors())
        return engine.name

    def _head(self) -> RoundedLoss:
        plan = self._plan
        engine = RoundedEngine(EngineKind.HEAD, plan.model, self._reader, self._make_grid)
        head = engine.module
        if plan.rounds_head:
            engine.round(lambda: self._observed.losses(head), plan.config.damping)
            self._products += engine.measure(lambda: self._exact.losses(head))
        tensors = engine.tensors()
        if not plan.rounds_head:
            del tensors["lm_head.weight"]  # it is the embedding's
        self._files.add(engine.name, tensors)

        def loss(states: HiddenStates, weights: Mapping[str, Tensor]) -> float:
            engine.use(weights)
            return float(states.losses(head).mean())

        return RoundedLoss(
            texts=len(plan.held_out),
            tokens=len(self._exact.texts.targets),
            float32=loss(self._exact, engine.exact),
            nearest=loss(self._nearest, engine.nearest),
            rounded=loss(self._rounded, engine.rounded),
        )

    def _report(self, loss: RoundedLoss) -> RoundingReport:
        plan, config = self._plan, self._plan.config
        return RoundingReport(
            model=plan.model.name,
            target=config.target,
            block_size=config.block_size,
            schedule=plan.schedule_text,
            texts=len(plan.observed),
            tokens=len(self._observed.texts),
            head="gptq" if plan.rounds_head else "nearest",
            products=tuple(self._products),
            loss=loss,
            warnings=plan.warnings,
        )


@dataclass(frozen=True)
class RoundingPlan(LayerwisePlan):
    """Which of the checkpoint's parts the result will have of its own."""

    config: RoundingConfig

    @property
    def has_schedule(self) -> bool:
        """Whether a schedule was given or brought along, which the result shall bring along."""
        brought = self.checkpoint.schedule_document is not None
        return brought or self.config.schedule is not None

    @property
    def rounds_head(self) -> bool:
        """Whether the head has weights of its own to round, before or after."""
        return self.config.untie_head or not self.model.tie_word_embeddings

    @property
    def summary(self) -> str:
        """What is rounded on what, in a line."""
        return (
            f"{self.model.name}: int4 of {self.config.target} in blocks of "
            f"{self.config.block_size}, {len(self.observed)} texts to round on, "
            f"{len(self.held_out)} for the losses, schedule {self.schedule_text}"
        )


def plan_rounding(config: RoundingConfig) -> RoundingPlan:
    """Read the data, open the checkpoint, parse the schedule; no weight is read.

    Raises one SkipDecError with every problem found: an output that exists, a head that can't be
    untied, blocks that do not divide a product's inputs, and what ``open_texts`` finds.
    """
    problems = Problems("round")
    problems.attempt(rounded_place(config.output).check, force=config.force)
    opened = open_texts(config, problems)
    problems.attempt(_check_structure, config, opened.checkpoint.model)
    return opened.plan(RoundingPlan)


def _check_structure(config: RoundingConfig, model: ModelSpec) -> None:
    problems = []
    if config.untie_head and not model.tie_word_embeddings:
        problems.append("the head has weights of its own already; leave --untie-head out")
    if config.target == "tensorrt":
        kinds = ((EngineKind.LAYER, 0), (EngineKind.HEAD, None))
        problems += [
            f"{engine_name(kind, index)}'s {parameter.name} has {parameter.shape[0]} inputs, which "
            f"blocks of {config.block_size} do not divide; choose another --block-size"
            for kind, index in kinds
            for parameter in engine_parameters(kind, model, index)
            if parameter.is_product and parameter.shape[0] % config.block_size
        ]
    if problems:
        raise UsageError(config.model, *problems)
