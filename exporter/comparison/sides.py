"""The two sides of a comparison: engines, and the Polygraphy runners that execute them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np
import onnxruntime
from polygraphy.backend.base import BaseRunner
from polygraphy.backend.onnxrt import OnnxrtRunner
from polygraphy.exception import PolygraphyException
from polygraphy.util import check_called_by
from typing_extensions import override

from ...engines.backends.ort import RUN_ERRORS, cpu_session_options, open_session
from ...engines.bundle import EngineBundle
from ...engines.checking import expanded
from ...engines.errors import EnvironmentMismatchError, SkipDecError, UsageError
from ...engines.host.gpus import survey_gpus
from ...engines.host.installation import require_extra
from ...engines.kernels.library import DOMAIN
from ...engines.manifest import PAST_OF, EngineKind, EngineSpec, KVBucket, PrecisionSpec
from ...engines.memory import Array
from ...engines.targets import compiled_targets, target_of
from ..config import CANONICAL
from ..quantization_config import DEFAULT_TARGET
from ..verification.tolerance import Tolerance, engine_tolerance, plan_tolerance
from .config import CompareConfig
from .inputs import EngineCall

_COMPARED_CACHES = ("float32", "float16")
_LEVELS: Mapping[str, onnxruntime.GraphOptimizationLevel] = {
    "disabled": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_SHAPE = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "vocab_size")


@dataclass(frozen=True)
class Side:
    """Engines by name, embed first and head last, with their ``precision`` and how they run.

    Plans run on the GPU that they were built for; ONNX graphs, lowered to ``form`` (see
    ``Manifest``), on ONNX Runtime's CPU provider at its optimisation ``level``.
    """

    name: str
    bundle: EngineBundle
    engines: Mapping[str, EngineSpec]
    precision: PrecisionSpec
    form: str = DEFAULT_TARGET
    level: onnxruntime.GraphOptimizationLevel = _LEVELS["all"]

    @property
    def is_compiled(self) -> bool:
        """Return True if the engines are TensorRT plans."""
        return target_of(self.form).is_compiled

    def outputs(
        self, name: str, calls: Sequence[EngineCall], graph: bytes | None = None
    ) -> list[dict[str, Array]]:
        """Run one engine on each of ``calls``; return outputs by role, inner tensors by name.

        ``graph``: an ONNX graph in place of the engine's own, with its weights. Raises
        SkipDecError if the engine fails to run.
        """
        spec = self.engines[name]
        roles = {tensor.name: str(tensor.role) for tensor in spec.outputs}
        positions = max(call.positions for call in calls)
        capacity, results = self.capacity(spec, positions), []
        try:
            with self.runner(spec, positions, graph) as runner:
                for call in calls:
                    if self.is_compiled:
                        runner.set_profile(0 if call.num_tokens == 1 else 1)  # decode, prefill
                    outputs = runner.infer(call.feed(spec, capacity))
                    results.append({roles.get(key, key): a.copy() for key, a in outputs.items()})
        except (PolygraphyException, *RUN_ERRORS) as error:
            raise SkipDecError(f"engine {name}", f"{self.name} can't run it: {error}") from error
        return results

    def runner(self, spec: EngineSpec, positions: int, graph: bytes | None = None) -> BaseRunner:
        """Return Polygraphy's runner of one engine."""
        if self.is_compiled:
            from polygraphy.backend.common import BytesFromPath
            from polygraphy.backend.trt import EngineFromBytes, TrtRunner

            plan = self._bucket(spec, positions).graph if spec.buckets else spec.graph
            load_plan = EngineFromBytes(BytesFromPath(str(self.bundle.locate(plan))))
            return TrtRunner(load_plan, name=self.name)
        options = cpu_session_options(None, self.bundle, spec)
        options.graph_optimization_level = self.level
        providers = ["CPUExecutionProvider"]
        load = partial(open_session, self.bundle, spec, options, providers, graph=graph)
        if self.form == DOMAIN:
            return InPlaceRunner(load, self.name, spec)
        return OnnxrtRunner(load, name=self.name)

    def capacity(self, spec: EngineSpec, positions: int) -> int:
        """Return the KV capacity T for calls that reach ``positions``; a plan's is static."""
        return self._bucket(spec, positions).capacity if spec.buckets else positions

    def tolerance(self, kind: EngineKind) -> Tolerance:
        """Return the tolerance of an engine of ``kind`` against a reference with its weights."""
        if self.is_compiled:
            return plan_tolerance(self.precision, kind)
        return engine_tolerance(self.precision, kind, self.form)

    def graph_path(self, name: str) -> Path | None:
        """Return the path of an engine's ONNX graph; None for a plan."""
        return None if self.is_compiled else self.bundle.locate(self.engines[name].graph)

    def _bucket(self, spec: EngineSpec, positions: int) -> KVBucket:
        for bucket in spec.buckets:
            if bucket.capacity >= positions:
                return bucket
        raise UsageError(
            f"engine {spec.name}",
            f"a call needs {positions} positions; the largest plan has {spec.buckets[-1].capacity}",
        )


class InPlaceRunner(OnnxrtRunner):  # type: ignore[misc]  # untyped there
    """Runs an engine whose past and present caches share memory, as skipdec's Attention requires.

    Polygraphy's own runner can't bind outputs. Given arrays are copied, not changed.
    """

    def __init__(
        self, load: Callable[[], onnxruntime.InferenceSession], name: str, spec: EngineSpec
    ) -> None:
        super().__init__(load, name=name)
        self._past = {
            spec.tensor(present).name: spec.tensor(past).name
            for present, past in PAST_OF.items()
            if present in spec.roles
        }

    @override
    @check_called_by("infer")  # type: ignore[untyped-decorator]
    def infer_impl(self, feed_dict: Mapping[str, Array]) -> OrderedDict[str, Array]:
        arrays = {name: np.array(array) for name, array in feed_dict.items()}  # kept while bound
        values = {
            name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()
        }
        binding = self.sess.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        names = [node.name for node in self.sess.get_outputs()]
        for name in names:
            if name in self._past:
                binding.bind_ortvalue_output(name, values[self._past[name]])
            else:
                binding.bind_output(name)
        start = perf_counter()
        self.sess.run_with_iobinding(binding)
        self.inference_time = perf_counter() - start
        return OrderedDict(
            (name, arrays[self._past[name]] if name in self._past else output.numpy())
            for name, output in zip(names, binding.get_outputs(), strict=True)
        )


def open_sides(config: CompareConfig) -> tuple[Side, Side]:
    """Return the bundle's own engines and the reference.

    Raises BundleError, UsageError for sides that can't be compared, and EnvironmentMismatchError
    for engines that can't run here.
    """
    bundle = EngineBundle.open(config.bundle)
    subject, reference = target_side(bundle), _reference(bundle, config.against)
    ours, theirs = (dict(side.bundle.manifest.model) for side in (subject, reference))
    if problems := [
        f"{field} is {ours[field]}; {reference.name} has {theirs[field]}"
        for field in _SHAPE
        if ours[field] != theirs[field]
    ]:
        raise UsageError(subject.name, *problems)
    return subject, reference


def _reference(bundle: EngineBundle, against: str | None) -> Side:
    manifest = bundle.manifest
    if against is None:
        against = CANONICAL if manifest.canonical else f"{DEFAULT_TARGET}:disabled"
    if against == CANONICAL:
        return _canonical_side(bundle)
    target, _, level = against.partition(":")
    if target in compiled_targets():
        raise UsageError(
            "--against",
            f"is {target}: name the directory of a bundle of its plans; make one with "
            f"'skipdec build {bundle.path} --target {target}'",
        )
    if target != DEFAULT_TARGET:
        return target_side(EngineBundle.open(expanded(against)))
    if level not in _LEVELS:
        raise UsageError(
            "--against",
            f"is {against!r}; allowed: {DEFAULT_TARGET}:LEVEL, one of {', '.join(_LEVELS)}",
        )
    if manifest.target != DEFAULT_TARGET:
        raise UsageError(
            "--against",
            f"is {against!r}, but the engines of {bundle.path} are for {manifest.target}",
        )
    return target_side(bundle, level)


def _canonical_side(bundle: EngineBundle) -> Side:
    specs, dtype = bundle.manifest.canonical, bundle.manifest.precision.dtype
    if not specs:
        raise UsageError(
            "--against",
            f"is canonical, but {bundle.path} keeps no canonical engines; export the model "
            f"again with --keep-canonical, or name {DEFAULT_TARGET}:disabled or another bundle",
        )
    if dtype == "bfloat16":
        raise EnvironmentMismatchError(
            str(bundle.path), "is bfloat16, for which ONNX Runtime has no products on CPUs"
        )
    name = f"{bundle.path.name} (canonical)"
    return Side(name, bundle, {s.name: s for s in specs}, PrecisionSpec(dtype=dtype))


def target_side(bundle: EngineBundle, level: str = "all") -> Side:
    """Return the engines of ``bundle``, to run on their own target.

    ``level`` is ONNX Runtime's. Raises EnvironmentMismatchError for plans that can't run here.
    """
    manifest = bundle.manifest
    if target_of(manifest.target).is_compiled:
        _require_tensorrt(bundle)
    elif (kv_dtype := manifest.kv_dtype) not in _COMPARED_CACHES:
        raise UsageError(
            str(bundle.path),
            f"has a KV cache of {kv_dtype}, which Polygraphy's runners don't take; compare a "
            f"bundle with {' or '.join(_COMPARED_CACHES)}",
        )
    shown = manifest.target if level == "all" else f"{manifest.target}:{level}"
    engines = {spec.name: spec for spec in manifest.engines}
    name = f"{bundle.path.name} ({shown})"
    return Side(name, bundle, engines, manifest.precision, manifest.form, _LEVELS[level])


def _require_tensorrt(bundle: EngineBundle) -> None:
    """Raise EnvironmentMismatchError if the plans of ``bundle`` can't run here."""
    target, subject = bundle.manifest.target, str(bundle.path)
    require_extra(target, f"a comparison of {target} engines")
    if not survey_gpus().gpus:
        raise EnvironmentMismatchError(
            subject, f"holds {target} plans, and there is no GPU here; compare it there"
        )
    if bundle.manifest.precision.dtype == "bfloat16":
        raise EnvironmentMismatchError(
            subject, "is bfloat16, which neither numpy nor Polygraphy's runners support"
        )
    import polygraphy.config

    polygraphy.config.USE_TENSORRT_RTX = target == "tensorrt-rtx"
