"""``round_weights``: write a checkpoint whose weights are rounded to an int4 grid on real texts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial

import torch
from typing_extensions import override

from ...engines.bundle.place import SCHEDULE_NAME, TOKENIZER_NAME
from ...engines.checking import Problems
from ...engines.errors import UsageError, counted
from ...engines.host.events import Events
from ...engines.manifest import EngineKind, ModelSpec, PrecisionSpec
from ...engines.targets import target_of
from ...exporter.graphs.tensorrt import block_problems
from ...runtime.schedule.text import document_text
from ..layerwise.plan import LayerwisePlan, open_plan
from ..layerwise.run import LayerwiseRun
from .config import RoundingConfig
from .engines import RoundedEngine, verbatim_tensors
from .files import (
    REPORT_NAME,
    CheckpointFiles,
    RoundedLoss,
    RoundedProduct,
    RoundingReport,
    rounded_place,
)


def round_weights(config: RoundingConfig, events: Events | None = None) -> RoundingReport:
    """Round all products' weights by GPTQ, write the checkpoint ``config.output``, return a report.

    Export with ``--quantize int4`` and the same target and block size rounds the result to nearest,
    which yields exactly the codes chosen here.

    Texts are teacher-forced at scheduled depth: tokens affect only the weights of layers that they
    run. Each product is rounded on inputs that the rounded products before it compute. Memory holds
    one engine's float32 weights three times, four float32 matrices [K, K] for a product of K inputs
    (fc2 of opt-6.7b: 4 GiB), and the hidden states of at most ``config.max_tokens`` tokens (three
    times for held-out texts).

    Raises SkipDecError before any work if something is wrong (see ``plan_rounding``), and
    CheckpointError, leaving no files, if an activation is NaN or infinite.
    """
    RoundingConfig.require(config)
    plan = plan_rounding(config)
    events = events or Events()
    events.planned(plan.summary, plan.warnings)
    return run_rounding(plan, events)


def run_rounding(plan: RoundingPlan, events: Events) -> RoundingReport:
    """Round a plan's model as ``round_weights`` does."""
    source = plan.checkpoint.directory
    assert source is not None  # only random weights have no directory
    place = rounded_place(plan.config.output)
    with place.replaced(force=plan.config.force) as directory, torch.inference_mode():
        files = CheckpointFiles(directory)
        report = _Rounder(plan, files).run(events)
        document = json.loads((source / "config.json").read_bytes())
        if plan.config.untie_head:
            document["tie_word_embeddings"] = False
        for key in ("dtype", "torch_dtype"):  # bfloat16 can't hold a code times a scale
            if document.get(key) == "bfloat16":
                document[key] = "float32"
        others = {REPORT_NAME: report.model_dump_json(indent=2).encode() + b"\n"}
        if (tokenizer := plan.checkpoint.tokenizer_json) is not None:
            others[TOKENIZER_NAME] = tokenizer
        if plan.has_schedule:
            others[SCHEDULE_NAME] = document_text(plan.schedule).encode()
        files.finish(source, document, others)
    return report


class _Rounder(LayerwiseRun):
    """Runs the texts exactly, rounded to nearest, and rounded by GPTQ."""

    def __init__(self, plan: RoundingPlan, files: CheckpointFiles) -> None:
        super().__init__(plan)
        self._plan, self._files = plan, files
        self._nearest, self._rounded = self.exact.copy(), self.exact.copy()
        self._products: list[RoundedProduct] = []

    def run(self, events: Events) -> RoundingReport:
        """Copy the embedding, then round all layers and the head."""
        self._files.add("embed", verbatim_tensors(EngineKind.EMBED, self.model, self.reader))
        self.run_engines("rounding", events)
        return self._report()

    @override
    def run_engine(self, kind: EngineKind, index: int | None) -> None:
        """Round, measure and write one engine."""
        plan, config = self._plan, self._plan.config
        engine = RoundedEngine(
            kind, self.model, self.reader, config.target, config.block_size, index
        )
        module = engine.module
        is_rounded = kind is EngineKind.LAYER or plan.rounds_head
        if is_rounded:
            engine.round(partial(self.observed.read, index, module), config.damping)
        if index is not None:
            self.observed.advance(index, module)
        for states, weights in ((self._rounded, engine.rounded), (self._nearest, engine.nearest)):
            engine.use(weights)
            states.run(index, module)
        engine.use(engine.exact)
        run_exact = partial(self.exact.run, index, module)
        tensors = engine.tensors()
        if is_rounded:
            self._products += engine.measure(run_exact)
        else:
            run_exact()
            del tensors["lm_head.weight"]  # it is the embedding's
        self._files.add(engine.name, tensors)

    def _report(self) -> RoundingReport:
        plan, config = self._plan, self._plan.config
        return RoundingReport(
            output=config.output,
            model=plan.model.name,
            target=config.target,
            block_size=config.block_size,
            schedule=plan.schedule_text,
            texts=len(plan.observed),
            tokens=len(self.observed.texts),
            head="gptq" if plan.rounds_head else "nearest",
            products=tuple(self._products),
            loss=RoundedLoss(
                texts=len(plan.held_out),
                tokens=len(self.exact.texts.targets),
                float32=self.exact.mean_loss,
                nearest=self._nearest.mean_loss,
                rounded=self._rounded.mean_loss,
            ),
            warnings=plan.warnings,
        )


@dataclass(frozen=True)
class RoundingPlan(LayerwisePlan):
    """A checked rounding."""

    config: RoundingConfig

    @property
    def has_schedule(self) -> bool:
        """True if a schedule was given or comes with the checkpoint; the result gets it, too."""
        brought = self.checkpoint.schedule is not None
        return brought or self.config.schedule is not None

    @property
    def rounds_head(self) -> bool:
        """True if the head has weights of its own to round, or gets them by untying."""
        return self.config.untie_head or not self.model.tie_word_embeddings

    @property
    def summary(self) -> str:
        """One-line summary of the work."""
        return (
            f"{self.model.name}: int4 of {self.config.target} in blocks of "
            f"{self.config.block_size}, {counted(len(self.observed), 'text')} to round on, "
            f"{len(self.held_out)} for the losses, schedule {self.schedule_text}"
        )


def plan_rounding(config: RoundingConfig) -> RoundingPlan:
    """Read the data, open the checkpoint and parse the schedule; no weights are read.

    Raises one SkipDecError with every problem found: an output that exists, a head that can't be
    untied, blocks that do not divide a product's inputs, and those of ``open_plan``.
    """
    problems = Problems("round")
    place = rounded_place(config.output)
    problems.attempt(place.check, force=config.force, reads=[config.data.path])
    return open_plan(RoundingPlan, config, problems, partial(_check_structure, config))


def _check_structure(config: RoundingConfig, model: ModelSpec) -> None:
    problems = []
    if config.untie_head and not model.tie_word_embeddings:
        problems.append("the head already has its own weights; leave --untie-head out")
    if target_of(config.target).is_compiled:
        int4 = PrecisionSpec(quantize="int4", head_quantize="int4", block_size=config.block_size)
        problems += block_problems(model, int4)
    if problems:
        raise UsageError(config.model, *problems)
