"""Compiles the canonical engines of one bundle to another bundle, on a machine without torch."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ...engines.bundle import EngineBundle
from ...engines.bundle.writer import check_target
from ...engines.checking import Problems, expanded
from ...engines.errors import UsageError
from ...engines.host.events import Events
from ...engines.host.extras import require_extra
from ...runtime.schedule import ExitSchedule
from ..config import BuildConfig
from ..quantization.migration import MIGRATION, Migration
from .plan import BundlePlan, bundle_path, planned_engines
from .report import ExportReport


def build_bundle(config: BuildConfig, events: Events | None = None) -> ExportReport:
    """Compile the canonical engines of ``config.bundle`` for ``config.target``.

    The new bundle has the old one's schedule and tokenizer. It is the same as one exported for the
    target with the same options and TensorRT library, but for a few bytes of plans: some of the
    builder's tables are in the order in which its threads got there. Nothing is visible at the
    output before all is built; what an interrupted build has finished is used by the next one.

    Raises as ``plan_build``, before any work; EngineBuildError, naming the engine, if TensorRT
    can't build it; BundleError if another process is writing the same bundle.
    """
    require_extra(config.target, "skipdec build")
    from .run import run

    return run(partial(plan_build, config), config, events)


def plan_build(config: BuildConfig) -> BundlePlan:
    """Open the bundle, hash every byte of it, and check everything; nothing is written.

    Raises MissingExtraError if TensorRT or onnx is not installed, else one SkipDecError with every
    problem found: bundle, output, what TensorRT can't do with the model or on this machine. What
    the plan lacks in disk space is its ``shortage``.
    """
    require_extra(config.target, "skipdec build")
    from ..building.compilation import plan_compilation
    from .engines import BundleEngines

    problems = Problems("build")
    source = problems.attempt(EngineBundle.open, expanded(config.bundle), verify="full")
    if source is None:
        raise problems.error()
    model, dtype = source.manifest.model, source.manifest.precision.dtype
    output = output_path(config, source)
    problems.attempt(_check_output, output, source, force=config.force)
    engines = problems.attempt(BundleEngines, source)
    compilation = problems.attempt(plan_compilation, config, dtype, model)
    if compilation is not None and compilation.ranges is not None:
        problems.attempt(_check_migration, source, compilation.ranges.migration, config)
    if engines is None or compilation is None or problems.errors:
        raise problems.error()
    tokenizer = source.manifest.tokenizer
    return BundlePlan(
        output=output,
        target=config.target,
        kernels=None,
        model=model,
        precision=compilation.precision,
        schedule=ExitSchedule.from_document(source.schedule_document),
        tokenizer=None if tokenizer is None else source.read(tokenizer),
        prompt_template=source.manifest.prompt_template,
        origin={"source": str(source.path)},
        open_source=lambda *_: engines,
        engines=planned_engines(model, compilation.precision, config.target, compilation),
        compilation=compilation,
    )


def output_path(config: BuildConfig, source: EngineBundle) -> Path:
    """``config.output``, else a directory here named after model, precision and target.

    A float16 bundle of opt-1.3b, built with ``quantize="int4"`` for ``tensorrt``:
    ``opt-1.3b-fp16-int4-tensorrt.skipdec``.
    """
    manifest = source.manifest
    return bundle_path(config, Path(manifest.model.name).name, manifest.precision.dtype)


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
