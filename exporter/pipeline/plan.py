"""Everything that can be known and checked about an export before any work starts."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...engines.bundle.place import partial_path
from ...engines.bundle.writer import check_target
from ...engines.checking import Problems
from ...engines.errors import CapacityError, UnsupportedModelError, UsageError
from ...engines.manifest import EngineKind, FloatType, ModelSpec, PrecisionSpec, Quantization
from ...engines.memory import ITEM_BYTES, WEIGHTS_ALIGNMENT
from ...engines.targets import exported_targets
from ...runtime.schedule import ExitSchedule
from ..architecture.architecture import engine_parameters
from ..architecture.families import hub_id
from ..architecture.weights import engine_name
from ..checkpoint.checkpoint import Checkpoint, open_checkpoint, resolve_schedule
from ..config import CANONICAL, DEFAULT_TARGET, ExportConfig, QuantizationConfig
from ..quantization.migration import Migration
from ..quantization.quantize import quantizer_of
from ..quantization.ranges import read_migration

if TYPE_CHECKING:
    from ..building.compilation import Compilation

HEAD_SIZE_MULTIPLE = 8

_GRAPH_BYTES = 1 << 16  # more than any engine's graph without weights
_FIXED_SECONDS = 10.0  # imports and traces
_SECONDS_PER_GIGAWEIGHT: dict[Quantization, float] = {  # measured on 2 cores, NVMe, page cache
    "none": 4.0,
    "int8": 6.0,
    "int8-block": 8.0,
    "int4": 8.0,
    "fp8": 8.0,
}
_PLAN_BYTES = 4 << 20  # of a plan, beside its weights: kernels for two profiles
_SECONDS_PER_PLAN = 0.5  # TensorRT-RTX; the full library times kernels and takes longer
_ITEM_BITS = {name: 8 * size for name, size in ITEM_BYTES.items()} | {"int4": 4, "float8_e4m3fn": 8}


@dataclass(frozen=True)
class PlannedEngine:
    """An engine that will be built; ``size`` in bytes is that of its files, a little over.

    TensorRT's engines have one plan for each of ``capacities``, or one in all if there are none.
    """

    kind: EngineKind
    layer_index: int | None
    size: int
    capacities: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """``embed``, ``layer_000`` ..., ``head`` or ``candidates``."""
        return engine_name(self.kind, self.layer_index)


@dataclass(frozen=True)
class ExportPlan:
    """What an export will do. ``canonical_size`` is 0 unless the canonical graphs are kept.

    ``temporary_size`` is what is written on the way and deleted at the end; ``compilation`` is
    None unless TensorRT compiles the engines; ``migration`` is None where weights stay as they are.
    """

    output: Path
    target: str
    checkpoint: Checkpoint
    precision: PrecisionSpec
    schedule: ExitSchedule
    engines: tuple[PlannedEngine, ...]
    canonical_size: int
    temporary_size: int
    compilation: Compilation | None
    migration: Migration | None
    warnings: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes of the bundle."""
        return self.canonical_size + sum(engine.size for engine in self.engines)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values that one position of one row takes at full depth."""
        model = self.checkpoint.model
        width = 2 * model.num_layers * model.num_kv_heads * model.head_dim
        return width * ITEM_BYTES[self.precision.dtype]

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
        plans = sum(len(engine.capacities) or 1 for engine in self.engines)
        compiling = 0.0 if self.compilation is None else _SECONDS_PER_PLAN * plans
        return (
            _FIXED_SECONDS
            + compiling
            + sum(
                rates[engine.kind] * math.prod(parameter.shape) / 1e9
                for engine in self.engines
                for parameter in engine_parameters(engine.kind, model, engine.layer_index)
            )
        )


def plan_export(config: ExportConfig) -> ExportPlan:
    """Open the checkpoint and check everything; nothing is written but the hub's own cache.

    Raises one SkipDecError with every problem found: target, output, model, tensors, schedule,
    disk space, and what TensorRT can't do with the model or on this machine.
    """
    problems = Problems("export")
    output = output_path(config)
    problems.attempt(_check_target_name, config.target)
    problems.attempt(check_target, output, force=config.force)
    checkpoint = problems.attempt(open_checkpoint, config.source)
    if checkpoint is None:
        raise problems.error()
    model = checkpoint.model
    schedule = problems.attempt(resolve_schedule, config.schedule, checkpoint)
    compilation = migration = None
    if config.is_compiled:
        compilation = problems.attempt(_plan_compilation, config, config.dtype, model)
        if compilation is not None and compilation.ranges is not None:
            migration = compilation.ranges.migration
    else:
        problems.attempt(_check_head_size, model)
        if config.ranges is not None:
            migration = problems.attempt(read_migration, config.ranges, model, config.precision())
    if schedule is None or problems.errors:
        raise problems.error()
    precision = config.precision() if compilation is None else compilation.precision
    engines = tuple(planned_engines(model, precision, config.target, compilation))
    canonical_size = 0
    if config.keep_canonical or compilation is not None:
        float_precision = PrecisionSpec(dtype=config.dtype)
        canonical = planned_engines(model, float_precision, CANONICAL)
        canonical_size = sum(engine.size for engine in canonical)
    check_space(output, canonical_size + sum(engine.size for engine in engines))
    return ExportPlan(
        output=output,
        target=config.target,
        checkpoint=checkpoint,
        precision=precision,
        schedule=schedule,
        engines=engines,
        canonical_size=canonical_size if config.keep_canonical else 0,
        temporary_size=0 if config.keep_canonical else canonical_size,
        compilation=compilation,
        migration=migration,
        warnings=(*checkpoint.warnings, *_precision_warnings(config)),
    )


def _plan_compilation(
    config: QuantizationConfig, dtype: FloatType, model: ModelSpec
) -> Compilation:
    """``plan_compilation``; where TensorRT is no target, neither it nor onnx is imported."""
    from ..building.compilation import plan_compilation

    return plan_compilation(config, dtype, model)


def output_path(config: ExportConfig) -> Path:
    """``config.output``, else a directory here named after model, precision and target.

    >>> output_path(ExportConfig(model="facebook/opt-1.3b", dtype="float16")).name
    'opt-1.3b-fp16.skipdec'
    """
    if config.output is not None:
        return config.output.expanduser().absolute()
    stem = Path(hub_id(config.model)).expanduser().resolve().name
    return Path.cwd() / bundle_name(stem, config.dtype, config)


def bundle_name(stem: str, dtype: FloatType, config: QuantizationConfig) -> str:
    """The directory's name for a model called ``stem``.

    >>> bundle_name("opt-1.3b", "float16", QuantizationConfig(target="tensorrt", quantize="int4"))
    'opt-1.3b-fp16-int4-tensorrt.skipdec'
    """
    precision = {"float32": "", "float16": "-fp16", "bfloat16": "-bf16"}[dtype]
    quantize = "" if config.quantize == "none" else f"-{config.quantize}"
    target = "" if config.target == DEFAULT_TARGET else f"-{config.target}"
    return f"{stem}{precision}{quantize}{target}.skipdec"


def planned_engines(
    model: ModelSpec,
    precision: PrecisionSpec,
    target: str,
    compilation: Compilation | None = None,
) -> Iterator[PlannedEngine]:
    """The engines of a bundle in the manifest's order, with the size of their files in bytes."""
    layers = [(EngineKind.LAYER, index) for index in range(model.num_layers)]
    sizes = {kind: _planned_size(kind, model, precision, target) for kind in EngineKind}
    for kind, index in (
        (EngineKind.EMBED, None),
        *layers,
        (EngineKind.HEAD, None),
        (EngineKind.CANDIDATES, None),
    ):
        if compilation is None:
            yield PlannedEngine(kind, index, sizes[kind])
        else:
            capacities = compilation.capacities(kind)
            size = (sizes[kind] + _PLAN_BYTES) * (len(capacities) or 1)
            yield PlannedEngine(kind, index, size, capacities)


def _planned_size(kind: EngineKind, model: ModelSpec, precision: PrecisionSpec, target: str) -> int:
    quantizer = quantizer_of(target, kind, precision)
    size = _GRAPH_BYTES
    for parameter in engine_parameters(kind, model, 0 if kind is EngineKind.LAYER else None):
        dtype: str = "float32" if parameter.keeps_float32 else precision.dtype
        stored: dict[str, tuple[str, tuple[int, ...]]] = {"": (dtype, parameter.shape)}
        if quantizer is not None and parameter.is_product:
            in_size, out_size = parameter.shape
            stored = quantizer.layout((in_size, out_size))
        for dtype, shape in stored.values():
            nbytes = -(-math.prod(shape) * _ITEM_BITS[dtype] // 8)
            size += -(-nbytes // WEIGHTS_ALIGNMENT) * WEIGHTS_ALIGNMENT
    return size


def _check_target_name(target: str) -> None:
    allowed = exported_targets()
    if target not in allowed:
        raise UsageError("target", f"{target!r} is unknown; allowed: {', '.join(allowed)}")


def _check_head_size(model: ModelSpec) -> None:
    if model.head_dim % HEAD_SIZE_MULTIPLE:
        raise UnsupportedModelError(
            model.name,
            f"heads are {model.head_dim} wide; allowed: multiples of {HEAD_SIZE_MULTIPLE}, which "
            "ONNX Runtime's GroupQueryAttention asks for",
        )


def check_space(output: Path, needed: int) -> None:
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


def _precision_warnings(config: ExportConfig) -> Iterator[str]:
    if config.is_compiled:
        return
    if config.dtype == "float16" and "none" in config.quantizations:
        yield (
            "float16 has no CPU matrix kernels: float weights become float32 when loaded, twice "
            "the file's size; --quantize int8 is smaller and faster on a CPU"
        )
