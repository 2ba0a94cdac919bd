"""Building of a bundle from another's engines, compiled or rewritten, without torch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ...engines.bundle import EngineBundle
from ...engines.bundle.writer import check_target
from ...engines.checking import Problems, expanded
from ...engines.errors import UsageError
from ...engines.host.events import Events
from ...engines.host.installation import require_extra
from ...engines.manifest import Manifest
from ...runtime.schedule.bundle import bundle_schedule
from ..checkpoint.chat import CheckpointChat
from ..config import BuildConfig
from ..quantization.migration import MIGRATION, Migration
from .plan import BundlePlan, EngineSource, bundle_path, planned_engines
from .report import ExportReport


def build_bundle(config: BuildConfig, events: Events | None = None) -> ExportReport:
    """Compile the canonical engines of ``config.bundle`` for ``config.target``, or rewrite them.

    The new bundle has the old one's schedule, tokenizer and chat template. It equals one exported
    for the target with the same options and TensorRT library, except for a few bytes of plans that
    depend on the order in which the builder's threads finish. The output becomes visible only when
    complete; an interrupted build is resumed by the next one.

    Raises as ``plan_build``, before any work; EngineBuildError, naming the engine, if TensorRT
    can't build it; BundleError if another process is writing the same bundle.
    """
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
    problems = Problems("build")
    source = problems.attempt(EngineBundle.open, expanded(config.bundle), verify="full")
    if source is None:
        raise problems.error()
    manifest = source.manifest
    output = output_path(config, source)
    problems.attempt(_check_output, output, source, force=config.force)
    compilation = engines = None
    if config.is_compiled:
        from ..building.compilation import plan_compilation
        from .engines import BundleEngines

        engines = problems.attempt(BundleEngines, source)
        compilation = problems.attempt(
            plan_compilation, config, manifest.precision.dtype, manifest.model
        )
        if compilation is not None and compilation.ranges is not None:
            problems.attempt(_check_migration, source, compilation.ranges.migration, config)
    else:
        problems.attempt(_check_kernels, source)
    if problems.errors:
        raise problems.error()
    from ..graphs.expansion import expanded_precision
    from .engines import RewrittenEngines

    def open_source(directory: Path, *_: object) -> EngineSource:
        return engines or RewrittenEngines(source, directory)

    if compilation is None:
        precision, warnings = expanded_precision(manifest.precision), _rewriting_warnings(manifest)
    else:
        precision, warnings = compilation.precision, iter(())
    left_out = [spec.name for spec in manifest.draft_engines]
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
        open_source=open_source,
        engines=planned_engines(manifest.model, precision, config.target, compilation),
        compilation=compilation,
        warnings=(*warnings, *([_left_out(left_out)] if left_out else [])),
    )


def _chat(source: EngineBundle) -> CheckpointChat | None:
    described = source.manifest.chat_template
    return None if described is None else CheckpointChat(source.read(described.path), described)


def _require_modules(config: BuildConfig) -> None:
    require_extra(config.target if config.is_compiled else "rewrite", "skipdec build")


def _check_kernels(source: EngineBundle) -> None:
    if source.manifest.kernels is None:
        raise UsageError(
            str(source.path),
            f"has no skipdec operators to rewrite: its engines already use "
            f"{source.manifest.target}'s",
        )


def _left_out(names: list[str]) -> str:
    return (
        f"{' and '.join(names)}, for drafts alone, are left out: drafts run on skipdec's kernels, "
        "or on a bundle that was exported for its target with --draft-layer"
    )


def _rewriting_warnings(manifest: Manifest) -> Iterator[str]:
    precision = manifest.precision
    if precision.dtype != "float32":
        yield (
            f"weights and cache of {precision.dtype} become float32, in which ONNX Runtime "
            "computes on a CPU anyway; the file doubles in size"
        )
    if precision.kv_dtype not in (None, "float32"):
        yield f"the KV cache of {precision.kv_dtype} becomes float32, as ONNX Runtime requires"


def output_path(config: BuildConfig, source: EngineBundle) -> Path:
    """Return ``config.output``, else a directory here named after model, precision and target.

    A float16 bundle of opt-1.3b, built with ``quantize="int4"`` for ``tensorrt``:
    ``opt-1.3b-fp16-int4-tensorrt.skipdec``. Rewritten, opt-1.3b-int8.skipdec becomes
    opt-1.3b-int8-onnxruntime.skipdec.
    """
    manifest = source.manifest
    if config.output is None and not config.is_compiled:
        return Path.cwd() / f"{source.path.stem}-{config.target}.skipdec"
    return bundle_path(config, Path(manifest.model.name).name, manifest.precision.dtype)


def _check_output(output: Path, source: EngineBundle, *, force: bool) -> None:
    if output.resolve() == source.path:
        raise UsageError(str(output), "is the source bundle; choose another --output")
    check_target(output, force=force)


def _check_migration(
    source: EngineBundle, migration: Migration | None, config: BuildConfig
) -> None:
    """Raise UsageError if the ranges migrate other factors than the canonical engines' weights."""
    asked = None if migration is None else migration.digest
    if source.manifest.source.get(MIGRATION) != asked:
        raise UsageError(
            str(config.ranges),
            f"and the weights of {source.path} are not migrated by the same factors; export with "
            "--keep-canonical and these --ranges, or pass the ranges that it was exported with",
        )
