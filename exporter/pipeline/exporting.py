"""Export of a checkpoint to a published bundle: check, trace, build, verify, publish."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...engines.bundle.place import bundle_place
from ...engines.checking import Problems, name_of
from ...engines.errors import (
    EnvironmentMismatchError,
    UnsupportedModelError,
    choice,
)
from ...engines.host.events import Events
from ...engines.host.installation import require_extra
from ...engines.kernels.library import find_library
from ...engines.manifest import EngineKind, FloatType, ModelSpec, PrecisionSpec
from ...engines.targets import exported_targets
from ...runtime.schedule import ExitSchedule
from ..architecture.architecture import engine_parameters, hub_id
from ..checkpoint.chat import parse_tokenizer, transformers_warnings
from ..checkpoint.checkpoint import Checkpoint, open_checkpoint, resolve_schedule
from ..checkpoint.tokenizer import vocabulary_warning
from ..config import CANONICAL, ExportConfig
from ..quantization.migration import Migration
from ..quantization.ranges import read_migration
from ..verification.report import VerificationRequest
from .drafts import plan_drafts
from .plan import BundlePlan, DraftParts, EngineSource, bundle_path, planned_engines
from .report import ExportReport, Stages

if TYPE_CHECKING:
    from ..building.journal import Journal
    from ..building.tensorrt_options import TensorRtOptions

HEAD_SIZE_MULTIPLE = 8


def export(config: ExportConfig, events: Events | None = None) -> ExportReport:
    """Export ``config.model`` as a bundle, verified unless ``config.verify`` is off.

    Equal configs give equal bundles, byte for byte, on similar machines. The output becomes visible
    only when all stages have passed; the next run resumes an interrupted export from
    ``.<name>.partial`` beside it.

    Raises, before any work, one error with every problem of config, model, checkpoint, schedule,
    output and disk space; VerificationError if an engine's results are wrong; BundleError if
    another process is writing the same bundle.
    """
    ExportConfig.require(config)
    require_extra("export", "skipdec export")
    from .run import run

    return run(partial(plan_export, config), config, events)


def plan_export(config: ExportConfig) -> BundlePlan:
    """Open the checkpoint and check everything; only the hub's own cache is written.

    Raises one SkipDecError with every problem: target, output, model, tensors, schedule, and what
    TensorRT can't do with the model or on this machine. Missing disk space is the plan's
    ``shortage``.
    """
    problems = Problems("export")
    output = output_path(config)
    problems.attempt(choice, dict.fromkeys(exported_targets()), config.target, "target")
    reads = [config.model, config.draft_layer, config.ngrams, config.ranges]
    problems.attempt(bundle_place(output).check, force=config.force, reads=reads)
    kernels = config.own_kernels
    if kernels is not None:
        problems.attempt(_check_kernels)
    checkpoint = problems.attempt(open_checkpoint, config.source)
    if checkpoint is None:
        raise problems.error()
    model = checkpoint.model
    schedule = problems.attempt(resolve_schedule, config.schedule, checkpoint)
    tensorrt, migration = _target_options(config, model, problems)
    drafts = plan_drafts(config, checkpoint, problems, is_migrated=migration is not None)
    if schedule is None or problems.errors:
        raise problems.error()
    precision = _precision(config, checkpoint) if tensorrt is None else tensorrt.precision
    canonical_size = _canonical_size(config, model)
    dtypes: set[FloatType] = {"float32" if kernels is not None else config.dtype}
    if canonical_size:
        dtypes.add(config.dtype)

    def open_source(directory: Path, journal: Journal, stages: Stages) -> EngineSource:
        from .engines import CheckpointEngines

        return CheckpointEngines(
            checkpoint, dtypes, migration, directory, journal, stages, drafts.layer
        )

    return BundlePlan(
        output=output,
        target=config.target,
        kernels=kernels,
        model=model,
        precision=precision,
        schedule=schedule,
        tokenizer=checkpoint.tokenizer_json,
        prompt_template=checkpoint.prompt_template,
        chat=checkpoint.chat,
        origin={"load_format": checkpoint.load_format},
        open_source=open_source,
        engines=planned_engines(model, precision, kernels or config.target, tensorrt, drafts),
        canonical_size=canonical_size if config.keep_canonical else 0,
        temporary_size=0 if config.keep_canonical else canonical_size,
        tensorrt=tensorrt,
        drafts=drafts,
        verification=_verification(config, output, precision) if config.verify else None,
        warnings=tuple(_warnings(config, checkpoint, schedule, drafts)),
    )


def output_path(config: ExportConfig) -> Path:
    """Return ``config.output``, else a directory here named after model, precision and target.

    >>> output_path(ExportConfig(model="facebook/opt-1.3b", dtype="float16")).name
    'opt-1.3b-fp16.skipdec'
    """
    stem = name_of(hub_id(config.model))
    return bundle_path(config, stem, config.dtype)


def _target_options(
    config: ExportConfig, model: ModelSpec, problems: Problems
) -> tuple[TensorRtOptions | None, Migration | None]:
    """Return TensorRT's options, if it compiles the engines, and the factors of ``--ranges``."""
    if config.is_compiled:
        options = problems.attempt(_tensorrt, config, model)
        ranges = None if options is None else options.ranges
        return options, None if ranges is None else ranges.migration
    problems.attempt(_check_head_size, model)
    if config.ranges is None:
        return None, None
    return None, problems.attempt(read_migration, config.ranges, model, config.precision())


def _canonical_size(config: ExportConfig, model: ModelSpec) -> int:
    """Return the bytes of the canonical engines; 0 if the export does not write them."""
    if not (config.keep_canonical or config.is_compiled):
        return 0
    engines = planned_engines(model, PrecisionSpec(dtype=config.dtype), CANONICAL)
    return sum(engine.size for engine in engines)


def _warnings(
    config: ExportConfig, checkpoint: Checkpoint, schedule: ExitSchedule, drafts: DraftParts
) -> Iterator[str]:
    yield from checkpoint.warnings
    yield from _length_warnings(checkpoint.model, config.max_seq_len)
    yield from _tokenizer_warnings(checkpoint)
    yield from _precision_warnings(config)
    yield from _schedule_warnings(schedule, checkpoint)
    yield from drafts.warnings


def _length_warnings(model: ModelSpec, max_seq_len: int | None) -> tuple[str, ...]:
    """Return a warning if the default length limits the bundle to shorter texts than the model."""
    if max_seq_len is not None or model.max_seq_len >= model.max_position_embeddings:
        return ()
    return (
        f"texts may have {model.max_seq_len:,} tokens, fewer than the model's "
        f"{model.max_position_embeddings:,}; --max-seq-len chooses another length",
    )


def _tokenizer_warnings(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return warnings if the tokenizer exceeds the embedding or differs from transformers'."""
    content, directory, chat = checkpoint.tokenizer_json, checkpoint.directory, checkpoint.chat
    if content is None or directory is None:
        return ()
    with closing(parse_tokenizer(content, chat, checkpoint.model.name)) as tokenizer:
        beyond = vocabulary_warning(tokenizer, checkpoint.model.vocab_size)
        others = transformers_warnings(directory, tokenizer, chat)
        return tuple(others if beyond is None else (beyond, *others))


def _tensorrt(config: ExportConfig, model: ModelSpec) -> TensorRtOptions:
    """Return TensorRT's options. Raises MissingExtraError without the export extra."""
    require_extra("export", f"skipdec export --target {config.target}")
    from ..building.tensorrt_options import resolve_options

    return resolve_options(config, config.dtype, model)


def _verification(
    config: ExportConfig, output: Path, precision: PrecisionSpec
) -> VerificationRequest:
    """Return the request to verify the bundle before it is published."""
    return VerificationRequest(
        kernels=config.own_kernels,
        directory=bundle_place(output).partial,
        source=config.source,
        precision=precision,
        ranges=config.ranges,
        draft_layer=config.draft_layer,
        atol=config.atol,
        max_divergence=config.max_divergence,
        verify_memory=config.verify_memory,
    )


def _check_kernels() -> None:
    if find_library() is None:
        raise EnvironmentMismatchError(
            "kernels",
            "is skipdec, whose library was not compiled with this installation, so the bundle "
            "could not be verified or run here; install skipdec again where there is a C++ "
            "compiler, or choose --kernels onnxruntime",
        )


def _check_head_size(model: ModelSpec) -> None:
    if model.head_dim % HEAD_SIZE_MULTIPLE:
        raise UnsupportedModelError(
            model.name,
            f"heads are {model.head_dim} wide; allowed: multiples of {HEAD_SIZE_MULTIPLE}, which "
            "attention on a CPU requires",
        )


def _schedule_warnings(schedule: ExitSchedule, checkpoint: Checkpoint) -> Iterator[str]:
    is_random = checkpoint.load_format == "dummy"
    if schedule.is_full or checkpoint.tuned_schedule is not None or is_random:
        return
    if not checkpoint.exits_early:
        yield (
            "the checkpoint has no record of being tuned to skip layers: at reduced depth its "
            "texts will be poor; tune it first (skipdec tune), or leave out --schedule"
        )
    elif not schedule.exits_early:
        yield (
            "the checkpoint was trained to exit early, after its lowest layers: at this schedule "
            "its texts will be poor; add placement=bottom"
        )


def _precision(config: ExportConfig, checkpoint: Checkpoint) -> PrecisionSpec:
    """Return the requested number formats for skipdec's or ONNX Runtime's kernels.

    With quantised weights, the former keep embedding tables in the checkpoint's own 16-bit type,
    which is exact: the table of Llama-3.2-1B takes 0.5 GB instead of 1.05 GB.
    """
    precision = config.precision()
    is_wide = precision.dtype == "float32" and precision.quantize != "none"
    if config.own_kernels is None or not is_wide:
        return precision
    parameters = engine_parameters(EngineKind.EMBED, checkpoint.model)
    tables = [parameter for parameter in parameters if parameter.is_table]
    stored = {checkpoint.reader.stored_type(source) for each in tables for source in each.sources}
    if len(stored) != 1 or "float32" in stored or any(each.factors for each in tables):
        return precision
    return precision.model_copy(update={"table_dtype": stored.pop()})


def _precision_warnings(config: ExportConfig) -> Iterator[str]:
    if config.is_compiled or config.own_kernels is not None:
        return
    if config.dtype == "float16" and "none" in config.quantizations:
        yield (
            "float16 has no CPU matrix kernels: float weights become float32 when loaded, twice "
            "the file's size; --kernels skipdec keeps them in float16"
        )
