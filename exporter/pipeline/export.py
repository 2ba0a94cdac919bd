"""From a checkpoint to a published bundle: check, trace, build, verify, publish."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ...engines.bundle.place import TOKENIZER_NAME
from ...engines.bundle.writer import BundleWriter
from ...engines.host.events import Events
from ...engines.host.extras import require_extra
from ...engines.manifest import EngineKind, FileRecord, FloatType, Manifest, ModelSpec
from ...runtime.schedule.text import format_schedule
from ..config import ExportConfig
from ..quantization.migration import MIGRATION
from ..verification.report import VerificationReport, VerificationRequest
from .plan import ExportPlan, plan_export
from .report import ExportReport, PeakMemory, Stages

if TYPE_CHECKING:
    import onnx_ir as ir

    from .engines import FinishedEngine


def export(config: ExportConfig, events: Events | None = None) -> ExportReport:
    """Export ``config.model`` as a bundle, verified unless ``config.verify`` is off.

    Equal configs give equal bundles, byte for byte, on machines alike. Nothing is visible at the
    output before all has passed; what an interrupted export has built lies in ``.<name>.partial``
    beside it and is used by the next one.

    Raises, before any work, one error with every problem of config, model, checkpoint, schedule,
    output and disk space; VerificationError if an engine does not compute what it should;
    BundleError if another process is writing the same bundle.
    """
    require_extra("export", "skipdec export")
    with PeakMemory() as memory:
        return _Export(config, events or Events(), memory).run()


class _Export:
    def __init__(self, config: ExportConfig, events: Events, memory: PeakMemory) -> None:
        self._config = config
        self._events = events
        self._stages = Stages(events)
        self._memory = memory

    def run(self) -> ExportReport:
        with self._stages.stage("check", 1):
            plan = plan_export(self._config)
        self._events.planned("", plan.warnings)
        with BundleWriter(
            plan.output, force=self._config.force, resume=self._config.resume
        ) as writer:
            engines = self._build(plan, self._trace(plan), writer.directory)
            schedule, tokenizer = plan.schedule.to_document(), plan.checkpoint.tokenizer_json
            verification = None
            if self._config.verify:
                # With its canonical engines, kept or not: the CPU runs those.
                writer.stage(_manifest(plan, engines, canonical=True), schedule, tokenizer)
                verification = self._verify(plan, writer.directory)
            manifest = _manifest(plan, engines, canonical=self._config.keep_canonical)
            with self._stages.stage("publish", 1):
                bundle = writer.publish(manifest, schedule, tokenizer)
        return ExportReport(
            output=bundle.path,
            digest=bundle.manifest.digest,
            model=plan.checkpoint.model.name,
            target=plan.target,
            precision=plan.precision,
            build=manifest.build,
            schedule=format_schedule(plan.schedule),
            engines=tuple(engine.report for engine in engines),
            size=sum(record.size for record in manifest.files),
            stage_seconds=self._stages.seconds,
            peak_memory=self._memory.peak,
            verification=verification,
            warnings=plan.warnings,
        )

    def _trace(self, plan: ExportPlan) -> dict[EngineKind, ir.Model]:
        """The canonical graph of each kind of engine; all layers share one."""
        with self._stages.stage("trace", len(EngineKind)):
            graphs = {}
            for kind in EngineKind:
                graphs[kind] = _canonical_graph(kind, plan.checkpoint.model, plan.precision.dtype)
                self._events.advance(str(kind))
        return graphs

    def _build(
        self, plan: ExportPlan, graphs: dict[EngineKind, ir.Model], directory: Path
    ) -> list[FinishedEngine]:
        """All engines, in the manifest's order."""
        from .engines import EngineBuilds

        finished = {}
        with self._stages.stage("build", len(plan.engines)):
            builds = EngineBuilds(plan, graphs, directory, self._events.part)
            for engine in builds.run(self._config.jobs):
                finished[engine.spec.name] = engine
                self._events.advance(engine.report.name, detail=engine.report.summary)
        return [finished[engine.name] for engine in plan.engines]

    def _verify(self, plan: ExportPlan, directory: Path) -> VerificationReport:
        from ..verification.process import run_verification

        config = self._config
        request = VerificationRequest(
            directory=directory,
            source=config.source,
            precision=plan.precision,
            ranges=config.ranges,
            atol=config.atol,
            verify_memory=config.verify_memory,
        )
        with self._stages.stage("verify"):
            return run_verification(request, self._events)


@lru_cache(maxsize=2 * len(EngineKind))
def _canonical_graph(kind: EngineKind, model: ModelSpec, dtype: FloatType) -> ir.Model:
    """``trace_engine``, remembered: a model is often exported in several precisions in a row."""
    from ..graphs.trace import trace_engine

    return trace_engine(kind, model, dtype)


def _manifest(plan: ExportPlan, engines: list[FinishedEngine], *, canonical: bool) -> Manifest:
    """What the bundle holds, with canonical engines as well where ``canonical`` is true."""
    from ..building.journal import tool_versions

    files = [record for engine in engines for record in engine.files]
    if canonical:
        files += [record for engine in engines for record in engine.canonical_files]
    specs = [engine.spec for engine in engines]
    tokenizer = plan.checkpoint.tokenizer_json
    if tokenizer is not None:
        digest = hashlib.sha256(tokenizer).hexdigest()
        files.append(FileRecord(path=TOKENIZER_NAME, size=len(tokenizer), sha256=digest))
    kept = [engine.canonical for engine in engines if engine.canonical is not None]
    return Manifest(
        target=plan.target,
        model=plan.checkpoint.model,
        precision=plan.precision,
        engines=tuple(spec for spec in specs if spec.kind is not EngineKind.CANDIDATES),
        candidates=next(spec for spec in specs if spec.kind is EngineKind.CANDIDATES),
        canonical=tuple(kept) if canonical else (),
        build=None if plan.compilation is None else plan.compilation.build,
        tokenizer=None if tokenizer is None else TOKENIZER_NAME,
        files=tuple(files),
        tool_versions=tool_versions(),
        source=_source(plan),
    ).with_digest()


def _source(plan: ExportPlan) -> dict[str, str]:
    """Where the weights come from, and the digest of the factors that migrated them, if any."""
    source = plan.checkpoint.source()
    return source if plan.migration is None else {**source, MIGRATION: plan.migration.digest}
