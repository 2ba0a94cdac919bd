"""Everything that can be known and checked about an export before any work starts."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np

from ..engines.bundle_swap import partial_path
from ..engines.bundle_writer import check_target
from ..engines.errors import (
    CapacityError,
    ScheduleError,
    SkipDecError,
    UnsupportedModelError,
    UsageError,
)
from ..engines.manifest import EngineKind, ModelSpec, PrecisionSpec, Quantization
from ..engines.session import BACKENDS
from ..runtime.schedule import ExitSchedule
from ..runtime.schedule_text import parse_schedule
from .checkpoint import Checkpoint, open_checkpoint
from .config import ExportConfig
from .families import hub_id
from .quantize import QUANTIZED_PARAMETERS, weight_quantizer
from .weights import engine_name, engine_parameters
from .weights_file import ALIGNMENT

P = ParamSpec("P")
T = TypeVar("T")

HEAD_SIZE_MULTIPLE = 8

_GRAPH_BYTES = 1 << 16  # more than any engine's graph without weights
_FIXED_SECONDS = 10.0  # imports and traces
_SECONDS_PER_GIGAWEIGHT: dict[Quantization, float] = {  # measured on 2 cores, NVMe, page cache
    "none": 4.0,
    "int8": 6.0,
    "int8-block": 8.0,
    "int4": 8.0,
}


@dataclass(frozen=True)
class PlannedEngine:
    """An engine that will be built; ``size`` in bytes is that of its files, a little over."""

    kind: EngineKind
    layer_index: int | None
    size: int

    @property
    def name(self) -> str:
        """``embed``, ``layer_000`` ..., ``head`` or ``candidates``."""
        return engine_name(self.kind, self.layer_index)


@dataclass(frozen=True)
class ExportPlan:
    """What an export will do. ``canonical_size`` is 0 unless the canonical graphs are kept."""

    output: Path
    checkpoint: Checkpoint
    precision: PrecisionSpec
    schedule: ExitSchedule
    engines: tuple[PlannedEngine, ...]
    canonical_size: int
    warnings: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes that will be written."""
        return self.canonical_size + sum(engine.size for engine in self.engines)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values that one position of one row takes at full depth."""
        model = self.checkpoint.model
        width = 2 * model.num_layers * model.hidden_size
        return width * np.dtype(self.precision.dtype).itemsize

    @property
    def estimated_seconds(self) -> float:
        """A rough guess, without download and verification."""
        model = self.checkpoint.model
        rates = {
            EngineKind.EMBED: _SECONDS_PER_GIGAWEIGHT["none"],
            EngineKind.LAYER: _SECONDS_PER_GIGAWEIGHT[self.precision.quantize],
            EngineKind.HEAD: _SECONDS_PER_GIGAWEIGHT[self.precision.head_quantize],
            EngineKind.CANDIDATES: 0.0,
        }
        return _FIXED_SECONDS + sum(
            rates[engine.kind] * math.prod(parameter.shape) / 1e9
            for engine in self.engines
            for parameter in engine_parameters(engine.kind, model, engine.layer_index)
        )


def plan_export(config: ExportConfig) -> ExportPlan:
    """Open the checkpoint and check everything; nothing is written but the hub's own cache.

    Raises one SkipDecError with every problem found: target, output, model, tensors, schedule,
    disk space.
    """
    problems = _Problems()
    output = output_path(config)
    problems.attempt(_check_target_name, config.target)
    problems.attempt(check_target, output, force=config.force)
    checkpoint = problems.attempt(open_checkpoint, config)
    if checkpoint is None:
        raise problems.error()
    problems.attempt(_check_head_size, checkpoint.model)
    precision = config.precision()
    engines = tuple(planned_engines(checkpoint.model, precision))
    canonical: tuple[PlannedEngine, ...] = ()
    if config.keep_canonical:
        canonical = tuple(planned_engines(checkpoint.model, PrecisionSpec(dtype=config.dtype)))
    schedule = problems.attempt(resolve_schedule, config, checkpoint)
    problems.attempt(_check_space, output, sum(engine.size for engine in (*engines, *canonical)))
    if schedule is None or problems.errors:
        raise problems.error()
    return ExportPlan(
        output=output,
        checkpoint=checkpoint,
        precision=precision,
        schedule=schedule,
        engines=engines,
        canonical_size=sum(engine.size for engine in canonical),
        warnings=(*checkpoint.warnings, *_precision_warnings(precision)),
    )


def output_path(config: ExportConfig) -> Path:
    """``config.output``, else a directory here named after model and precision.

    >>> output_path(ExportConfig(model="facebook/opt-1.3b", dtype="float16")).name
    'opt-1.3b-fp16.skipdec'
    """
    if config.output is not None:
        return config.output.expanduser().absolute()
    stem = Path(hub_id(config.model)).expanduser().resolve().name
    fp16 = "-fp16" if config.dtype == "float16" else ""
    quantize = "" if config.quantize == "none" else f"-{config.quantize}"
    return Path.cwd() / f"{stem}{fp16}{quantize}.skipdec"


def resolve_schedule(config: ExportConfig, checkpoint: Checkpoint) -> ExitSchedule:
    """The schedule asked for, else the checkpoint's own, else full depth.

    A preset without a horizon takes the checkpoint's. Raises ScheduleError if it doesn't fit.
    """
    own = checkpoint.schedule_document
    num_layers = checkpoint.model.num_layers
    trained = None if own is None else ExitSchedule.from_document(own)
    if config.schedule is not None:
        horizon = None if trained is None else trained.horizon
        return parse_schedule(config.schedule, num_layers=num_layers, horizon=horizon)
    if trained is None:
        return ExitSchedule.full(num_layers)
    if trained.num_layers != num_layers:
        raise ScheduleError(
            "the checkpoint's schedule",
            f"is for {trained.num_layers} layers; the model has {num_layers}; "
            "correct it, or choose another with --schedule",
        )
    return trained


def planned_engines(model: ModelSpec, precision: PrecisionSpec) -> Iterator[PlannedEngine]:
    """The engines of a bundle in the manifest's order, with the size of their files in bytes."""
    yield PlannedEngine(EngineKind.EMBED, None, _planned_size(EngineKind.EMBED, model, precision))
    layer_size = _planned_size(EngineKind.LAYER, model, precision)
    for index in range(model.num_layers):
        yield PlannedEngine(EngineKind.LAYER, index, layer_size)
    for kind in (EngineKind.HEAD, EngineKind.CANDIDATES):
        yield PlannedEngine(kind, None, _planned_size(kind, model, precision))


def _planned_size(kind: EngineKind, model: ModelSpec, precision: PrecisionSpec) -> int:
    quantizer = weight_quantizer(kind, precision)
    size = _GRAPH_BYTES
    for parameter in engine_parameters(kind, model, 0 if kind is EngineKind.LAYER else None):
        dtype: str = "float32" if parameter.keeps_float32 else precision.dtype
        stored: dict[str, tuple[str, tuple[int, ...]]] = {"": (dtype, parameter.shape)}
        if quantizer is not None and parameter.name in QUANTIZED_PARAMETERS[kind]:
            in_size, out_size = parameter.shape
            stored = quantizer.layout((in_size, out_size))
        for dtype, shape in stored.values():
            nbytes = math.prod(shape) * np.dtype(dtype).itemsize
            size += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return size


def _check_target_name(target: str) -> None:
    if target not in BACKENDS:
        raise UsageError("target", f"{target!r} is unknown; allowed: {', '.join(BACKENDS)}")


def _check_head_size(model: ModelSpec) -> None:
    if model.head_dim % HEAD_SIZE_MULTIPLE:
        raise UnsupportedModelError(
            model.name,
            f"heads are {model.head_dim} wide; allowed: multiples of {HEAD_SIZE_MULTIPLE}, which "
            "ONNX Runtime's GroupQueryAttention asks for",
        )


def _check_space(output: Path, needed: int) -> None:
    """Raise CapacityError unless ``needed`` bytes fit beside ``output``."""
    unfinished = partial_path(output)
    parent = next(parent for parent in output.parents if parent.exists())
    written = sum(path.stat().st_size for path in unfinished.rglob("*") if path.is_file())
    free = shutil.disk_usage(parent).free + written
    if needed > free:
        raise CapacityError(
            str(output),
            f"needs {needed / 1e9:.1f} GB; {free / 1e9:.1f} GB are free on that disk; "
            "free some, or choose another with --output",
        )


def _precision_warnings(precision: PrecisionSpec) -> Iterator[str]:
    if precision.dtype == "float16" and "none" in (precision.quantize, precision.head_quantize):
        yield (
            "float16 has no CPU matrix kernels: float weights become float32 when loaded, twice "
            "the file's size; --quantize int8 is smaller and faster on a CPU"
        )


class _Problems:
    """Runs checks one after another and keeps what each of them raises."""

    def __init__(self) -> None:
        self.errors: list[SkipDecError] = []

    def attempt(self, check: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return the check's result, None if it failed."""
        try:
            return check(*args, **kwargs)
        except SkipDecError as error:
            self.errors.append(error)
            return None

    def error(self) -> SkipDecError:
        """One error with every problem kept; the only one itself, so that its type is not lost."""
        if len(self.errors) == 1:
            return self.errors[0]
        return UsageError(
            "export",
            *(f"{error.subject}: {text}" for error in self.errors for text in error.problems),
        )
