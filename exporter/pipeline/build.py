"""Builds a bundle from the canonical engines of another, without torch."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ...engines.bundle import EngineBundle
from ...engines.bundle.place import bundle_place
from ...engines.checking import Problems
from ...engines.errors import UsageError
from ...engines.host.events import Events
from ...engines.host.installation import require_extra
from ...engines.manifest import Manifest
from ...runtime.schedule.bundle import bundle_schedule
from ..checkpoint.chat import CheckpointChat
from ..config import BuildConfig
from ..quantization.migration import MIGRATION, Migration
from .plan import BundlePlan, bundle_path, planned_engines
from .report import ExportReport


def build_bundle(config: BuildConfig, events: Events | None = None) -> ExportReport:
    """Build a bundle for ``config.target`` from the canonical engines of ``config.bundle``.

    The new bundle has the old one's schedule, tokenizer and chat template. It equals one exported
    for the target with the same options and libraries, except for a few bytes of plans that
    depend on the order in which the builder's threads finish. The output becomes visible only when
    complete; an interrupted build is resumed by the next one.

    Raises the errors of ``plan_build`` before any work; EngineBuildError, naming the engine, if
    TensorRT can't build it; BundleError if another process is writing the same bundle.
    """
    BuildConfig.require(config)
    _require_modules(config)
    from .run import run

    return run(partial(plan_build, config), config, events)


def plan_build(config: BuildConfig) -> BundlePlan:
    """Open the bundle, hash all its files, and check all options; nothing is written.

    Raises MissingExtraError if TensorRT or onnx is not installed, else one SkipDecError with every
    problem: bundle, output, and what TensorRT can't do with the model or on this machine. Missing
    disk space is the plan's ``shortage``.
    """
    _require_modules(config)
    from ..building.canonical import canonical_engines
    from .engines import BundleEngines

    problems = Problems("build")
    source = problems.attempt(EngineBundle.open, config.bundle, verify="full")
    if source is None:
        raise problems.error()
    manifest = source.manifest
    output = output_path(config, source)
    reads = [source.path, config.ranges]
    problems.attempt(bundle_place(output).check, force=config.force, reads=reads)
    problems.attempt(canonical_engines, source)
    tensorrt = None
    if config.is_compiled:
        from ..building.tensorrt_options import resolve_options

        tensorrt = problems.attempt(
            resolve_options, config, manifest.precision.dtype, manifest.model
        )
        if tensorrt is not None and tensorrt.ranges is not None:
            problems.attempt(check_migration, source, tensorrt.ranges.migration, config)
    else:
        problems.attempt(_check_dtype, source)
    if problems.errors:
        raise problems.error()
    precision = (
        config.precision_for(manifest.precision.dtype) if tensorrt is None else tensorrt.precision
    )
    return BundlePlan(
        output=output,
        target=config.target,
        kernels=None,
        model=manifest.model,
        precision=precision,
        schedule=bundle_schedule(source),
        tokenizer=None if manifest.tokenizer is None else source.read(manifest.tokenizer),
        prompt_template=manifest.prompt_template,
        chat=_chat(source),
        origin={"source": str(source.path)},
        open_source=lambda directory, *_: BundleEngines(source, directory),
        engines=planned_engines(manifest.model, precision, config.target, tensorrt),
        tensorrt=tensorrt,
        warnings=_left_out(manifest),
    )


def _chat(source: EngineBundle) -> CheckpointChat | None:
    described = source.manifest.chat_template
    return None if described is None else CheckpointChat(source.read(described.path), described)


def _require_modules(config: BuildConfig) -> None:
    require_extra(config.target if config.is_compiled else "build", "skipdec build")


def _check_dtype(source: EngineBundle) -> None:
    if source.manifest.precision.dtype == "bfloat16":
        raise UsageError(
            str(source.path),
            "has canonical engines of bfloat16, for which ONNX Runtime has no matrix kernels on "
            "CPUs; export the model again with --dtype float32 and --keep-canonical",
        )


def _left_out(manifest: Manifest) -> tuple[str, ...]:
    """Return a warning that names the bundle's parts for drafts, which are left out; () if none."""
    parts = [spec.name for spec in manifest.draft_engines]
    if manifest.draft is not None:
        parts.insert(0, f"draft {manifest.draft}")
    if manifest.ngrams is not None:
        parts.append("n-grams")
    if not parts:
        return ()
    return (
        f"left out: {', '.join(parts)}; drafts run on skipdec's kernels, or on a bundle that was "
        "exported for its target with --draft-layer",
    )


def output_path(config: BuildConfig, source: EngineBundle) -> Path:
    """Return ``config.output``, else a directory here named after model, precision and target.

    A float16 bundle of opt-1.3b, built with ``quantize="int4"`` for ``tensorrt``:
    ``opt-1.3b-fp16-int4-tensorrt.skipdec``.
    """
    manifest = source.manifest
    return bundle_path(config, Path(manifest.model.name).name, manifest.precision.dtype)


def check_migration(source: EngineBundle, migration: Migration | None, config: BuildConfig) -> None:
    """Raise UsageError if ``migration`` is not that of the canonical engines' weights."""
    requested = None if migration is None else migration.digest
    if source.manifest.source.get(MIGRATION) != requested:
        raise UsageError(
            str(config.ranges),
            f"and the weights of {source.path} are not migrated by the same factors; export with "
            "--keep-canonical and these --ranges, or pass the ranges that it was exported with",
        )
