"""Compiles the canonical engines of one bundle to another bundle, on a machine without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import TYPE_CHECKING

from ...engines.bundle import EngineBundle
from ...engines.bundle.place import TOKENIZER_NAME
from ...engines.bundle.writer import BundleWriter, check_target
from ...engines.checking import Problems
from ...engines.errors import UsageError
from ...engines.host.events import Events
from ...engines.host.extras import require_extra
from ...engines.manifest import EngineKind, Manifest
from ...runtime.schedule import ExitSchedule
from ...runtime.schedule.text import format_schedule
from ..config import BuildConfig
from ..quantization.migration import MIGRATION, Migration
from .plan import PlannedEngine, bundle_name, check_space, planned_engines
from .report import EngineReport, ExportReport, PeakMemory, Stages

if TYPE_CHECKING:
    from ..building.canonical import CanonicalEngine
    from ..building.compilation import Compilation
    from .engines import FinishedEngine


@dataclass(frozen=True)
class BuildPlan:
    """What a build will do."""

    output: Path
    source: EngineBundle
    canonical: tuple[CanonicalEngine, ...]
    compilation: Compilation
    schedule: ExitSchedule
    engines: tuple[PlannedEngine, ...]

    @property
    def size(self) -> int:
        """Bytes of the bundle, a little over."""
        return sum(engine.size for engine in self.engines)


def plan_build(config: BuildConfig) -> BuildPlan:
    """Open the bundle, hash every byte of it, and check everything; nothing is written.

    Raises MissingExtraError if TensorRT or onnx is not installed, else one SkipDecError with every
    problem found: bundle, output, what TensorRT can't do with the model or on this machine, disk
    space.
    """
    require_extra(config.target, "skipdec build")
    from ..building.canonical import canonical_engines
    from ..building.compilation import plan_compilation

    problems = Problems("build")
    source = problems.attempt(EngineBundle.open, config.bundle.expanduser(), verify="full")
    if source is None:
        raise problems.error()
    model, dtype = source.manifest.model, source.manifest.precision.dtype
    output = output_path(config, source)
    problems.attempt(_check_output, output, source, force=config.force)
    canonical = problems.attempt(canonical_engines, source)
    compilation = problems.attempt(plan_compilation, config, dtype, model)
    if compilation is not None and compilation.ranges is not None:
        problems.attempt(_check_migration, source, compilation.ranges.migration, config)
    if canonical is None or compilation is None or problems.errors:
        raise problems.error()
    engines = planned_engines(model, compilation.precision, config.target, compilation)
    plan = BuildPlan(
        output=output,
        source=source,
        canonical=canonical,
        compilation=compilation,
        schedule=ExitSchedule.from_document(source.schedule_document),
        engines=tuple(engines),
    )
    check_space(output, plan.size)
    return plan


def output_path(config: BuildConfig, source: EngineBundle) -> Path:
    """``config.output``, else a directory here named after model, precision and target.

    A float16 bundle of opt-1.3b, built with ``quantize="int4"`` for ``tensorrt``:
    ``opt-1.3b-fp16-int4-tensorrt.skipdec``.
    """
    if config.output is not None:
        return config.output.expanduser().absolute()
    stem = Path(source.manifest.model.name).name
    return Path.cwd() / bundle_name(stem, source.manifest.precision.dtype, config)


def build_bundle(config: BuildConfig, events: Events | None = None) -> ExportReport:
    """Compile the canonical engines of ``config.bundle`` for ``config.target``.

    The new bundle has the old one's schedule and tokenizer. It is the same as one exported for the
    target with the same options and TensorRT library, but for a few bytes of plans: some of the
    builder's tables are in the order in which its threads got there. Nothing is visible at the
    output before all is built; what an interrupted build has finished is used by the next one.

    Raises as ``plan_build``, before any work; EngineBuildError, naming the engine, if TensorRT
    can't build it; BundleError if another process is writing the same bundle.
    """
    stages = Stages(events or Events())
    with PeakMemory() as memory:
        with stages.stage("check", 1):
            plan = plan_build(config)
        source = plan.source
        with BundleWriter(plan.output, force=config.force, resume=config.resume) as writer:
            engines = _compile(plan, config.jobs, writer.directory, stages)
            manifest = _manifest(plan, engines)
            tokenizer = source.manifest.tokenizer
            content = None if tokenizer is None else source.file(tokenizer).read_bytes()
            with stages.stage("publish", 1):
                bundle = writer.publish(manifest, source.schedule_document, content)
    return ExportReport(
        output=bundle.path,
        digest=bundle.manifest.digest,
        model=manifest.model.name,
        target=config.target,
        precision=manifest.precision,
        build=manifest.build,
        schedule=format_schedule(plan.schedule),
        engines=tuple(engine.report for engine in engines),
        size=sum(record.size for record in manifest.files),
        stage_seconds=stages.seconds,
        peak_memory=memory.peak,
        verification=None,
        warnings=(),
    )


def _check_output(output: Path, source: EngineBundle, *, force: bool) -> None:
    if output.resolve() == source.path:
        raise UsageError(str(output), "is the bundle that is compiled; choose another --output")
    check_target(output, force=force)


def _check_migration(
    source: EngineBundle, migration: Migration | None, config: BuildConfig
) -> None:
    """Raise UsageError if ranges are of other inputs than the canonical engines' products have."""
    asked = None if migration is None else migration.digest
    if source.manifest.source.get(MIGRATION) != asked:
        raise UsageError(
            str(config.ranges),
            f"and the weights of {source.path} are not migrated by the same factors; export with "
            "--keep-canonical and these --ranges, or give the ranges that it was exported with",
        )


def _compile(plan: BuildPlan, jobs: int, directory: Path, stages: Stages) -> list[FinishedEngine]:
    """All engines, in the manifest's order."""
    from ..building.compile import Compiler
    from ..building.journal import Journal
    from .engines import FinishedEngine, run_jobs, unless

    cancelled = Event()
    compiler = Compiler(
        plan.compilation,
        plan.source.manifest.model,
        directory,
        Journal(directory),
        unless(cancelled, stages.events.part),
    )

    def finish(canonical: CanonicalEngine) -> FinishedEngine:
        start = perf_counter()
        compiled = compiler.compile(canonical)
        report = EngineReport(
            name=compiled.spec.name,
            size=sum(record.size for record in compiled.files),
            seconds=perf_counter() - start,
            resumed=compiled.resumed,
            plans=compiled.plans,
        )
        return FinishedEngine(report, compiled.spec, compiled.files)

    finished = {}
    with stages.stage("build", len(plan.canonical)):
        for engine in run_jobs(finish, plan.canonical, jobs, cancelled):
            finished[engine.spec.name] = engine
            stages.events.advance(engine.report.name, detail=engine.report.summary)
    return [finished[engine.name] for engine in plan.engines]


def _manifest(plan: BuildPlan, engines: list[FinishedEngine]) -> Manifest:
    from ..building.journal import compiling_tool_versions

    source = plan.source.manifest
    specs = [engine.spec for engine in engines]
    files = [record for engine in engines for record in engine.files]
    files += [record for record in source.files if record.path == TOKENIZER_NAME]
    return Manifest(
        target=plan.compilation.target,
        model=source.model,
        precision=plan.compilation.precision,
        engines=tuple(spec for spec in specs if spec.kind is not EngineKind.CANDIDATES),
        candidates=next(spec for spec in specs if spec.kind is EngineKind.CANDIDATES),
        build=plan.compilation.build,
        tokenizer=source.tokenizer,
        files=tuple(files),
        tool_versions=source.tool_versions | compiling_tool_versions(),
        source=source.source,
    ).with_digest()
