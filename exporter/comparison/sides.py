"""The two sides of a comparison: which engines, and which of Polygraphy's runners runs them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnxruntime
from polygraphy.backend.base import BaseRunner
from polygraphy.backend.onnxrt import OnnxrtRunner

from ...engines.backends.ort import cpu_session_options, open_session
from ...engines.bundle import EngineBundle, file_record
from ...engines.errors import EnvironmentMismatchError, UsageError
from ...engines.host.gpus import survey_gpus
from ...engines.host.installation import require_extra
from ...engines.kernels.library import DOMAIN
from ...engines.manifest import EngineKind, EngineSpec, KVBucket, PrecisionSpec
from ...engines.targets import compiled_targets, target_of
from ..config import CANONICAL, DEFAULT_TARGET
from ..verification.tolerance import Tolerance, engine_tolerance, plan_tolerance
from .config import CompareConfig
from .in_place import InPlaceRunner

_COMPARED_CACHES = ("float32", "float16")
_LEVELS: Mapping[str, onnxruntime.GraphOptimizationLevel] = {
    "disabled": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


@dataclass(frozen=True)
class Side(ABC):
    """Engines by name, embed first and head last, of ``precision``; ``name`` is for people."""

    name: str
    bundle: EngineBundle
    engines: Mapping[str, EngineSpec]
    precision: PrecisionSpec

    @abstractmethod
    def runner(self, spec: EngineSpec, positions: int, graph: bytes | None = None) -> BaseRunner:
        """What runs calls of up to ``positions`` positions of one engine.

        ``graph``: an ONNX graph in place of the engine's own, with its weights.
        """

    @abstractmethod
    def tolerance(self, kind: EngineKind) -> Tolerance:
        """What an engine of ``kind`` may differ by from what its weights stand for."""

    def capacity(self, spec: EngineSpec, positions: int) -> int:
        """The KV capacity T with which ``spec`` runs calls of up to ``positions`` positions."""
        return positions

    @abstractmethod
    def prepare(self, runner: BaseRunner, num_tokens: int) -> None:
        """Prepare an active runner for a call of ``num_tokens`` tokens a row."""

    @abstractmethod
    def graph_path(self, spec: EngineSpec) -> Path | None:
        """The ONNX graph of an engine; None for a plan."""

    def changed_weights(self, name: str) -> Iterator[str]:
        """Say which weights of an engine are not those of the manifest, which nobody hashed yet."""
        records = {record.path: record for record in self.bundle.manifest.files}
        for path in self.engines[name].weights:
            if file_record(self.bundle.path, path) != records[path]:
                yield f"{self.name}: {path} was damaged or edited; its manifest has another hash"


@dataclass(frozen=True)
class OnnxRuntimeSide(Side):
    """ONNX graphs on ONNX Runtime's CPU provider."""

    level: onnxruntime.GraphOptimizationLevel = _LEVELS["all"]
    form: str = DEFAULT_TARGET  # see `Manifest.form`

    def runner(self, spec: EngineSpec, positions: int, graph: bytes | None = None) -> BaseRunner:
        """See Side. The session is made with the runtime's own options, when it is activated."""
        options = cpu_session_options(None, self.bundle)
        options.graph_optimization_level = self.level
        providers = ["CPUExecutionProvider"]
        load = partial(open_session, self.bundle, spec, options, providers, graph=graph)
        if self.form == DOMAIN:
            return InPlaceRunner(load, self.name, spec)
        return OnnxrtRunner(load, name=self.name)

    def tolerance(self, kind: EngineKind) -> Tolerance:
        """See Side."""
        return engine_tolerance(self.precision, kind, self.form)

    def prepare(self, runner: BaseRunner, num_tokens: int) -> None:
        """See Side: a session takes calls of any size."""

    def graph_path(self, spec: EngineSpec) -> Path | None:
        """See Side."""
        return self.bundle.locate(spec.graph)


@dataclass(frozen=True)
class TensorRtSide(Side):
    """TensorRT's plans on the GPU that they were built for."""

    def runner(self, spec: EngineSpec, positions: int, graph: bytes | None = None) -> BaseRunner:
        """See Side; ``graph`` must be None."""
        from polygraphy.backend.common import BytesFromPath
        from polygraphy.backend.trt import EngineFromBytes, TrtRunner

        assert graph is None, "a plan's inner tensors can't be marked"
        plan = self._bucket(spec, positions).graph if spec.buckets else spec.graph
        load = EngineFromBytes(BytesFromPath(str(self.bundle.locate(plan))))
        return TrtRunner(load, name=self.name)

    def tolerance(self, kind: EngineKind) -> Tolerance:
        """See Side."""
        return plan_tolerance(self.precision, kind)

    def capacity(self, spec: EngineSpec, positions: int) -> int:
        """See Side: that of the plan, which is static."""
        return self._bucket(spec, positions).capacity if spec.buckets else positions

    def prepare(self, runner: BaseRunner, num_tokens: int) -> None:
        """See Side: the first profile is for decode steps, the second for prompts."""
        runner.set_profile(0 if num_tokens == 1 else 1)

    def graph_path(self, spec: EngineSpec) -> Path | None:
        """See Side."""
        return None

    def _bucket(self, spec: EngineSpec, positions: int) -> KVBucket:
        for bucket in spec.buckets:
            if bucket.capacity >= positions:
                return bucket
        raise UsageError(
            f"engine {spec.name}",
            f"a call needs {positions} positions; the largest plan has {spec.buckets[-1].capacity}",
        )


def open_sides(config: CompareConfig) -> tuple[Side, Side]:
    """The bundle's own engines, and the reference that they are held against.

    Raises BundleError, UsageError for sides that don't go together, and EnvironmentMismatchError
    for plans that can't run here.
    """
    bundle = EngineBundle.open(config.bundle)
    subject = target_side(bundle)
    reference = _reference(bundle, config.against)
    problems = [
        f"{field} is {ours}; {reference.name} has {theirs}"
        for field in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "vocab_size")
        if (ours := getattr(bundle.manifest.model, field))
        != (theirs := getattr(reference.bundle.manifest.model, field))
    ]
    if problems:
        raise UsageError(subject.name, *problems)
    return subject, reference


def _reference(bundle: EngineBundle, against: str | None) -> Side:
    """The side that ``against`` names."""
    manifest = bundle.manifest
    if against is None:
        against = CANONICAL if manifest.canonical else f"{DEFAULT_TARGET}:disabled"
    if against == CANONICAL:
        if not manifest.canonical:
            raise UsageError(
                "against",
                f"is canonical, but {bundle.path} keeps no canonical engines; export the model "
                f"again with --keep-canonical, or name {DEFAULT_TARGET}:disabled or another bundle",
            )
        return OnnxRuntimeSide(
            f"{bundle.path.name} (canonical)",
            bundle,
            {spec.name: spec for spec in manifest.canonical},
            PrecisionSpec(dtype=_runs_on_cpu(bundle).dtype),
        )
    target, _, level = against.partition(":")
    if target in compiled_targets():
        raise UsageError(
            "against",
            f"is {target}: name the directory of a bundle of its plans; make one with "
            f"'skipdec build {bundle.path} --target {target}'",
        )
    if target != DEFAULT_TARGET:
        return target_side(EngineBundle.open(against))
    if level not in _LEVELS:
        raise UsageError(
            "against",
            f"is {against!r}; allowed: {DEFAULT_TARGET}:LEVEL, one of {', '.join(_LEVELS)}",
        )
    if manifest.target != DEFAULT_TARGET:
        raise UsageError(
            "against", f"is {against!r}, but the engines of {bundle.path} are for {manifest.target}"
        )
    return target_side(bundle, level)


def target_side(bundle: EngineBundle, level: str = "all") -> Side:
    """The engines that generate, on what they are made for.

    ``level`` is ONNX Runtime's. Raises EnvironmentMismatchError for plans that can't run here.
    """
    manifest = bundle.manifest
    engines = {spec.name: spec for spec in manifest.engines}
    name = bundle.path.name
    if target_of(manifest.target).is_compiled:
        _require_tensorrt(bundle)
        return TensorRtSide(f"{name} ({manifest.target})", bundle, engines, manifest.precision)
    shown = manifest.target if level == "all" else f"{manifest.target}:{level}"
    if (kv_dtype := manifest.kv_dtype) not in _COMPARED_CACHES:
        raise UsageError(
            str(bundle.path),
            f"has a KV cache of {kv_dtype}, which Polygraphy's runners don't take; compare a "
            f"bundle with {' or '.join(_COMPARED_CACHES)}",
        )
    return OnnxRuntimeSide(
        f"{name} ({shown})",
        bundle,
        engines,
        manifest.precision,
        level=_LEVELS[level],
        form=manifest.form,
    )


def _runs_on_cpu(bundle: EngineBundle) -> PrecisionSpec:
    precision = bundle.manifest.precision
    if precision.dtype == "bfloat16":
        raise EnvironmentMismatchError(
            str(bundle.path), "is bfloat16, for which ONNX Runtime has no products on CPUs"
        )
    return precision


def _require_tensorrt(bundle: EngineBundle) -> None:
    """Raise EnvironmentMismatchError where the plans of ``bundle`` can't run."""
    target = bundle.manifest.target
    require_extra(target, f"a comparison of {target} engines")
    if not survey_gpus().gpus:
        raise EnvironmentMismatchError(
            str(bundle.path), f"holds {target} plans, and there is no GPU here; compare it there"
        )
    if bundle.manifest.precision.dtype == "bfloat16":
        raise EnvironmentMismatchError(
            str(bundle.path), "is bfloat16, which numpy has not, nor so Polygraphy's runners here"
        )
    import polygraphy.config

    polygraphy.config.USE_TENSORRT_RTX = target == "tensorrt-rtx"
