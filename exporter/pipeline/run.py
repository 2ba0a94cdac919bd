"""Execution of a plan: build or resume every engine, verify, and publish the bundle."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import TypeVar

from ...engines.bundle.place import NGRAMS_NAME, TOKENIZER_NAME
from ...engines.bundle.writer import BundleWriter
from ...engines.host.events import Events
from ...engines.host.signals import Interruption
from ...engines.host.worker import Worker
from ...engines.manifest import (
    DRAFT_ENTRY,
    DRAFT_HEAD,
    DRAFT_LAYER,
    DRAFT_STATES,
    TRAINED_HEAD,
    DraftHead,
    EngineKind,
    FileRecord,
    Manifest,
    PrecisionSpec,
    TrainedDraft,
)
from ...runtime.schedule.text import format_schedule
from ..architecture.weights import engine_name
from ..building.engine import BuiltEngine, write_narrow_head
from ..building.journal import Journal
from ..building.plan_compiler import OnPlanProgress, PlanCompiler
from ..config import CANONICAL
from ..quantization_config import QuantizationConfig
from ..verification import process
from .plan import BundlePlan, EngineSource, PlannedEngine
from .report import EngineReport, ExportReport, PeakMemory, Stages

T = TypeVar("T")
R = TypeVar("R")


def run(
    make_plan: Callable[[], BundlePlan],
    config: QuantizationConfig,
    events: Events | None,
) -> ExportReport:
    """Make and execute the plan. The output becomes visible only when all stages have passed."""
    stages = Stages(events or Events())
    with PeakMemory() as memory:
        with stages.stage("check", 1):
            plan = make_plan()
            plan.check_space()
        stages.events.planned("", plan.warnings)
        schedule = plan.schedule.to_document()
        with (
            BundleWriter(plan.output, force=config.force, resume=config.resume) as writer,
            _verifier(plan) as verifier,
        ):
            building = _Building(plan, writer.directory, stages)
            reports = building.run(config.jobs)
            verification = None
            if plan.verification is not None:
                # Include canonical engines even if they are not kept, because the CPU runs them.
                writer.stage(building.manifest(canonical=True), schedule, plan.texts)
                with stages.stage("verify"):
                    verification = process.run_verification(
                        plan.verification, stages.events, verifier
                    )
            manifest = building.manifest(canonical=plan.keeps_canonical)
            with stages.stage("publish", 1), Interruption():  # once begun, it completes
                bundle = writer.publish(manifest, schedule, plan.texts)
    return ExportReport(
        output=bundle.path,
        digest=bundle.manifest.digest,
        model=plan.model.name,
        target=plan.target,
        kernels=plan.kernels,
        precision=plan.precision,
        build=manifest.build,
        schedule=format_schedule(plan.schedule),
        engines=reports,
        size=sum(record.size for record in manifest.files),
        stage_seconds=stages.seconds,
        peak_memory=memory.peak,
        verification=verification,
        warnings=plan.warnings,
    )


def _verifier(plan: BundlePlan) -> AbstractContextManager[Worker | None]:
    """Start the verifier, if any, during the trace, because its imports take about as long."""
    if plan.verification is None:
        return nullcontext()
    return process.start_verifier(plan.model)


class _Building:
    """Builds the engines of ``plan`` in ``directory``, after tracing graphs if necessary."""

    def __init__(self, plan: BundlePlan, directory: Path, stages: Stages) -> None:
        self._plan = plan
        self._stages = stages
        self._cancelled = Event()
        self._engines: dict[str, BuiltEngine] = {}
        journal = Journal(directory)
        self._source: EngineSource = plan.open_source(directory, journal, stages)
        self._compiler = None
        if plan.tensorrt is not None:
            on_progress = _unless(self._cancelled, stages.events.part)
            self._compiler = PlanCompiler(
                plan.tensorrt, plan.model, directory, journal, on_progress
            )

    def run(self, jobs: int) -> tuple[EngineReport, ...]:
        """Build all engines, ``jobs`` at once; reports are in the manifest's order.

        After an error or a KeyboardInterrupt no further engine is started. TensorRT's running
        builders are stopped; other engines in progress are finished.
        """
        plan, reports = self._plan, {}
        with self._stages.stage("build", len(plan.engines)):
            for engine, report in _run_jobs(self._build, plan.engines, jobs, self._cancelled):
                self._engines[report.name], reports[report.name] = engine, report
                self._stages.events.advance(report.name, detail=report.summary)
        if plan.drafts.head_tokens is not None:
            reports[DRAFT_HEAD] = self._cut_head(plan.drafts.head_tokens)
        names = (*(planned.name for planned in plan.engines), DRAFT_HEAD)
        return tuple(reports[name] for name in names if name in reports)

    def _cut_head(self, tokens: int) -> EngineReport:
        """Write the narrow head. This takes milliseconds, so it is never resumed."""
        start, plan = perf_counter(), self._plan
        head = self._engines[engine_name(EngineKind.HEAD)]
        built = write_narrow_head(head, plan.model, plan.precision, plan.form, tokens)
        self._engines[DRAFT_HEAD] = built
        size = sum(record.size for record in built.files)
        seconds = perf_counter() - start
        return EngineReport(name=DRAFT_HEAD, size=size, seconds=seconds, resumed=False)

    def _build(self, planned: PlannedEngine) -> tuple[BuiltEngine, EngineReport]:
        start = perf_counter()
        plan, canonical = self._plan, None
        if self._compiler is not None or (plan.keeps_canonical and not planned.is_draft):
            float_precision = PrecisionSpec(dtype=plan.precision.dtype)
            canonical = self._source.engine(planned, CANONICAL, float_precision)
        if self._compiler is not None:
            assert canonical is not None
            engine = self._compiler.compile(canonical)
        else:
            engine = self._source.engine(planned, plan.form, plan.precision_of(planned))
        engine = engine.model_copy(update={"canonical": canonical})
        kept = canonical.files if canonical is not None and plan.keeps_canonical else ()
        report = EngineReport(
            name=planned.name,
            size=sum(record.size for record in (*engine.files, *kept)),
            seconds=perf_counter() - start,
            resumed=engine.resumed and (canonical is None or canonical.resumed),
            plans=engine.plans,
        )
        return engine, report

    def manifest(self, *, canonical: bool) -> Manifest:
        """Return the bundle's manifest, including canonical engines if ``canonical`` is true."""
        plan = self._plan
        engines = [self._engines[planned.name] for planned in plan.engines if not planned.is_draft]
        drafts = [self._engines[planned.name] for planned in plan.engines if planned.is_draft]
        if DRAFT_HEAD in self._engines:
            drafts.append(self._engines[DRAFT_HEAD])
        kept = [each.canonical for each in engines if canonical and each.canonical is not None]
        files = [record for engine in (*engines, *kept, *drafts) for record in engine.files]
        for name, content in plan.texts.items():
            digest = hashlib.sha256(content).hexdigest()
            files.append(FileRecord(path=name, size=len(content), sha256=digest))
        *stitched, candidates = [engine.spec for engine in engines]
        assert candidates.kind is EngineKind.CANDIDATES
        return Manifest(
            target=plan.target,
            kernels=plan.kernels,
            model=plan.model,
            precision=plan.precision,
            engines=tuple(stitched),
            candidates=candidates,
            canonical=tuple(engine.spec for engine in kept),
            build=None if plan.tensorrt is None else plan.tensorrt.build,
            draft=plan.drafts.text,
            trained_draft=self._trained_draft(),
            draft_head=self._draft_head(),
            ngrams=None if plan.drafts.ngrams is None else NGRAMS_NAME,
            tokenizer=None if plan.tokenizer is None else TOKENIZER_NAME,
            prompt_template=plan.prompt_template,
            chat_template=None if plan.chat is None else plan.chat.described,
            files=tuple(files),
            tool_versions=self._source.tool_versions,
            source=self._source.provenance(),
        )

    def _trained_draft(self) -> TrainedDraft | None:
        layer = self._plan.drafts.layer
        if layer is None:
            return None
        return TrainedDraft(
            reads=layer.reads,
            token_ids=layer.token_ids,
            states=self._engines[DRAFT_STATES].spec,
            entry=self._engines[DRAFT_ENTRY].spec,
            layer=self._engines[DRAFT_LAYER].spec,
            head=self._engines[TRAINED_HEAD].spec,
        )

    def _draft_head(self) -> DraftHead | None:
        tokens = self._plan.drafts.head_tokens
        if tokens is None:
            return None
        return DraftHead(tokens=tokens, engine=self._engines[DRAFT_HEAD].spec)


class _Cancelled(Exception):  # noqa: N818  (not an error: another engine's error ends the run)
    """Ends a build whose result is no longer needed."""


def _unless(cancelled: Event, on_progress: OnPlanProgress) -> OnPlanProgress:
    """Return ``on_progress``, but raise _Cancelled once ``cancelled`` is set."""

    def report(plan: str, phase: str, step: int, steps: int) -> None:
        if cancelled.is_set():
            raise _Cancelled
        on_progress(plan, phase, step, steps)

    return report


def _run_jobs(
    work: Callable[[T], R], items: Sequence[T], jobs: int, cancelled: Event
) -> Iterator[R]:
    """Call ``work`` on every item, ``jobs`` at once, and yield the results as they complete.

    If one fails, or the caller stops, no further item is started, and ``cancelled`` is set for
    those in progress.
    """
    if jobs == 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(jobs, thread_name_prefix="build") as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            cancelled.set()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
