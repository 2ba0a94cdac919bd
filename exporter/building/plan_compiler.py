"""Compilation of canonical engines to TensorRT plans, one per KV capacity.

Steps: lower the graph, quantise weights, pass both to the builder's child process, and record the
result in the journal. The canonical engine's files are only read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx_ir as ir

from ...engines.bundle import file_record
from ...engines.manifest import EngineSpec, KVBucket, ModelSpec
from ...engines.trt.build import PlanRequest, build_plan
from ..architecture.architecture import engine_parameters
from ..graphs.dtypes import check_dtypes
from ..graphs.lowering import LoweredEngine, lowering_of
from ..graphs.tensorrt import EXPECTED_LAYERS, bind_activation_scales, with_capacity
from .canonical import CanonicalGraph
from .engine import BuiltEngine, WeightsFile, encoded, step_bytes, store_tensors
from .journal import Journal, plan_key
from .tensorrt_options import TensorRtOptions

OnPlanProgress = Callable[[str, str, int, int], None]
"""Takes a plan's name (``layer_007.t256``), the builder's phase, the step and the total."""

_QUANTIZED_WEIGHTS = "quantized.weights"


class PlanCompiler:
    """Compiles the engines of one bundle into ``directory``; thread-safe.

    ``on_progress`` may be called from any thread; an exception from it ends that engine's build.
    """

    def __init__(
        self,
        tensorrt: TensorRtOptions,
        model: ModelSpec,
        directory: Path,
        journal: Journal,
        on_progress: OnPlanProgress,
    ) -> None:
        self._tensorrt = tensorrt
        self._model = model
        self._directory = directory
        self._folder = Path("engines") / tensorrt.target
        self._journal = journal
        self._on_progress = on_progress
        (directory / self._folder).mkdir(parents=True, exist_ok=True)

    def compile(self, canonical: BuiltEngine) -> BuiltEngine:
        """Build every plan of one engine that is not in the journal.

        Raises EngineBuildError, naming the engine, if the builder rejects the graph, crashes, or
        builds a different network; finished plans stay in the journal.
        """
        source, precision = CanonicalGraph(canonical), self._tensorrt.precision
        lowered = lowering_of(self._tensorrt.target)(
            source.graph(), canonical.spec.kind, self._model, precision
        )
        spec = self._spec(canonical.spec, lowered)
        keys = {
            path: plan_key(path, canonical.files, self._tensorrt, capacity)
            for path, capacity in _plans(spec)
        }
        built = {path: self._journal.built(key) for path, key in keys.items()}
        missing = [(path, capacity) for path, capacity in _plans(spec) if built[path] is None]
        if missing:
            with self._bound(source, lowered, spec) as weights_path:
                for path, capacity in missing:
                    request = self._request(spec, lowered, weights_path, capacity)
                    built[path] = plan = self._build(request, spec, path)
                    self._journal.record(keys[path], plan)
        done = [each for each in built.values() if each is not None]
        return BuiltEngine(
            spec=spec,
            files=tuple(record for each in done for record in each.files),
            plans=tuple(report for each in done for report in each.plans),
            directory=self._directory,
            resumed=not missing,
        )

    def _spec(self, canonical: EngineSpec, lowered: LoweredEngine) -> EngineSpec:
        """Return the manifest's description; a plan file is both graph and weights."""
        capacities = self._tensorrt.capacities(canonical.kind)
        stem = self._folder / canonical.name
        buckets = tuple(
            KVBucket(capacity=capacity, graph=f"{stem}.t{capacity}.plan") for capacity in capacities
        )
        paths = tuple(bucket.graph for bucket in buckets) or (f"{stem}.plan",)
        return EngineSpec(
            name=canonical.name,
            kind=canonical.kind,
            layer_index=canonical.layer_index,
            graph=paths[0],
            weights=paths,
            buckets=buckets,
            inputs=lowered.signature.inputs,
            outputs=lowered.signature.outputs,
            step_bytes=self._step_bytes(canonical, lowered),
        )

    @contextmanager
    def _bound(
        self, source: CanonicalGraph, lowered: LoweredEngine, spec: EngineSpec
    ) -> Iterator[Path]:
        """Provide the weights of the lowered graph; yield a path in the directory that has them.

        Float weights are linked; quantised ones are written to a temporary file, deleted once the
        engine is built.
        """
        with TemporaryDirectory(prefix=f".{spec.name}.", dir=self._directory) as name:
            directory = Path(name)
            if source.weights_path is not None:
                (directory / source.weights_path.name).symlink_to(source.weights_path)
            with WeightsFile(directory / _QUANTIZED_WEIGHTS) as weights:
                for parameter, tensor in source.tensors.items():
                    if parameter in lowered.quantizers:
                        tensors = encoded(parameter, source.read(parameter), lowered)
                        store_tensors(tensors, lowered, weights)
                    else:
                        lowered.graph.graph.initializers[parameter].const_value = tensor
            if (ranges := self._tensorrt.ranges) is not None:
                bind_activation_scales(lowered, spec.kind, ranges.of(spec.name))
            tensorrt = self._tensorrt
            graph = ir.to_proto(lowered.graph).graph
            check_dtypes(graph, spec, self._model, tensorrt.precision, tensorrt.target)
            yield directory / spec.name

    def _request(
        self, spec: EngineSpec, lowered: LoweredEngine, weights_path: Path, capacity: int | None
    ) -> PlanRequest:
        graph = lowered.graph if capacity is None else with_capacity(lowered.graph, capacity)
        return PlanRequest(
            engine=spec.name if capacity is None else f"{spec.name}.t{capacity}",
            graph=ir.to_proto(graph).SerializeToString(deterministic=True),
            weights_path=weights_path,
            profiles=self._tensorrt.profiles(spec.kind, spec.inputs, capacity),
            inputs=spec.inputs,
            outputs=spec.outputs,
            expected_layers=EXPECTED_LAYERS.get(spec.kind, {}),
            options=self._tensorrt.options,
        )

    def _build(self, request: PlanRequest, spec: EngineSpec, path: str) -> BuiltEngine:
        """Return the engine with only the plan at ``path``."""

        def on_progress(phase: str, step: int, steps: int) -> None:
            self._on_progress(request.engine, phase, step, steps)

        report = build_plan(request, self._directory / path, on_progress)
        files = (file_record(self._directory, path),)
        return BuiltEngine(spec=spec, files=files, plans=(report,), directory=self._directory)

    def _step_bytes(self, canonical: EngineSpec, lowered: LoweredEngine) -> int:
        """Return the bytes of weights and scales that a token reads, from the lowered graph."""
        sizes = {}
        initializers = lowered.graph.graph.initializers
        parameters = engine_parameters(canonical.kind, self._model, canonical.layer_index)
        for parameter in parameters:
            names = [parameter.name]
            if parameter.name in lowered.quantizers:
                in_size, out_size = parameter.shape
                layout = lowered.quantizers[parameter.name].layout((in_size, out_size))
                names = [f"{parameter.name}.{suffix}" for suffix in layout]
            sizes[parameter.name] = sum(_tensor_bytes(initializers[name]) for name in names)
        return step_bytes(sizes, parameters)


def _plans(spec: EngineSpec) -> tuple[tuple[str, int | None], ...]:
    """Return path and KV capacity of each plan of an engine."""
    return tuple((bucket.graph, bucket.capacity) for bucket in spec.buckets) or (
        (spec.graph, None),
    )


def _tensor_bytes(value: ir.Value) -> int:
    """Return the size of an initialiser, with or without data; int4 takes half a byte each."""
    assert value.dtype is not None, value.name
    assert value.shape is not None, value.name
    bits = math.prod(int(size) for size in value.shape.numpy()) * value.dtype.bitwidth
    return -(-bits // 8)
