"""Measure the cost of running layers as separate engines against one joined graph."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import onnx
import onnxruntime

from skipdec.engines.backends.ort import OrtBackend, shared_thread_pool_size
from skipdec.engines.bundle import EngineBundle
from skipdec.engines.kernels.library import require_library
from skipdec.engines.manifest import EngineSpec, TensorRole
from skipdec.engines.memory import Array

Tensors = dict[TensorRole, Array]
MERGED_NAME = "merged.onnx"
# Inputs with the same value for every layer, merged into one input of the graph.
_SHARED = frozenset(
    {
        TensorRole.SEQLENS_K,
        TensorRole.TOTAL_SEQUENCE_LENGTH,
        TensorRole.WRITE_INDICES,
        TensorRole.ATTENTION_MASK,
    }
)


@dataclass(frozen=True)
class StitchingCost:
    """Seconds of one decode step of all layers, one pair per repetition."""

    stitched: tuple[float, ...]
    merged: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Stitched ÷ merged, median of the repetitions' ratios."""
        return median(s / m for s, m in zip(self.stitched, self.merged, strict=True))


class StitchingBench:
    """The layers of a bundle as engines and as one graph, bound to the same buffers.

    One row attends to ``length`` positions. ``hidden_states`` float [1, 1, E] is the input of both
    and overwritten by both. Threads: the process-wide pool if there is one.
    """

    def __init__(self, bundle: EngineBundle, length: int = 128) -> None:
        layers = bundle.manifest.layers
        self.tensors = _step_tensors(layers, length)
        self.hidden_states = self.tensors[0][TensorRole.HIDDEN_STATES]
        backend = OrtBackend()
        self._bindings = [
            backend.load(bundle, layer).bind(tensors)
            for layer, tensors in zip(layers, self.tensors, strict=True)
        ]
        self.run_merged = self._load_merged(bundle, layers)

    def run_stitched(self) -> None:
        """Run every layer's engine once."""
        for binding in self._bindings:
            binding.run()

    def measure(self, repetitions: int = 50) -> StitchingCost:
        """Time both alternately, after one warm-up run each."""
        start = self.hidden_states.copy()
        for run in (self.run_stitched, self.run_merged):
            run()
        stitched, merged = [], []
        for _ in range(repetitions):
            stitched.append(self._seconds(self.run_stitched, start))
            merged.append(self._seconds(self.run_merged, start))
        return StitchingCost(tuple(stitched), tuple(merged))

    def _seconds(self, run: Callable[[], None], start: Array) -> float:
        self.hidden_states[...] = start
        begin = perf_counter()
        run()
        return perf_counter() - begin

    def _load_merged(
        self, bundle: EngineBundle, layers: Sequence[EngineSpec]
    ) -> Callable[[], None]:
        options = onnxruntime.SessionOptions()
        options.use_per_session_threads = shared_thread_pool_size() is None
        if bundle.manifest.kernels is not None:
            library = require_library(str(bundle.path))
            options.register_custom_ops_library(str(library.path))
        with tempfile.TemporaryDirectory(dir=bundle.path.parent, prefix=".merged-") as directory:
            model = merge_engines(bundle, layers, Path(directory))
            session = onnxruntime.InferenceSession(
                Path(directory) / MERGED_NAME, options, providers=["CPUExecutionProvider"]
            )
        arrays = {
            merged_name(layers, position, role): array
            for position, tensors in enumerate(self.tensors)
            for role, array in tensors.items()
        }
        binding = session.io_binding()
        for value in model.graph.input:
            tensor = onnxruntime.OrtValue.ortvalue_from_numpy(arrays[value.name])
            binding.bind_ortvalue_input(value.name, tensor)
        for value in model.graph.output:
            tensor = onnxruntime.OrtValue.ortvalue_from_numpy(arrays[value.name])
            binding.bind_ortvalue_output(value.name, tensor)
        return lambda: session.run_with_iobinding(binding)


def _step_tensors(layers: Sequence[EngineSpec], length: int) -> list[Tensors]:
    """Return inputs of one decode step of one row by role, for each layer; caches hold small
    numbers.
    """
    random = np.random.default_rng(0)
    hidden = layers[0].tensor(TensorRole.HIDDEN_STATES)
    past = layers[0].tensor(TensorRole.PAST_KEY)
    hidden_shape = (1, 1, int(hidden.shape[-1]))
    cache_shape = (1, int(past.shape[1]), length, int(past.shape[3]))
    hidden_states = random.standard_normal(hidden_shape).astype(hidden.dtype)  # [1, 1, E]
    shared = {
        TensorRole.HIDDEN_STATES: hidden_states,
        TensorRole.HIDDEN_STATES_OUT: hidden_states,
        TensorRole.SEQLENS_K: np.array([length - 1], np.int32),
        TensorRole.TOTAL_SEQUENCE_LENGTH: np.array(length, np.int32),
        TensorRole.WRITE_INDICES: np.array([length - 1], np.int64),
    }
    shared = {role: array for role, array in shared.items() if role in layers[0].roles}
    tensors = []
    for _ in layers:
        key = (0.1 * random.standard_normal(cache_shape)).astype(past.dtype)  # [1, N, T, D]
        value = (0.1 * random.standard_normal(cache_shape)).astype(past.dtype)  # [1, N, T, D]
        tensors.append(
            {
                **shared,
                TensorRole.PAST_KEY: key,
                TensorRole.PRESENT_KEY: key,
                TensorRole.PAST_VALUE: value,
                TensorRole.PRESENT_VALUE: value,
            }
        )
    return tensors


def merge_engines(
    bundle: EngineBundle, engines: Sequence[EngineSpec], directory: Path
) -> onnx.ModelProto:
    """Write ``engines``, each feeding the next, to ``directory / "merged.onnx"``.

    ``merged_name`` names the tensors; the first engine's hidden_states and the last one's
    hidden_states_out are the graph's. Weights are hard links to the bundle's, since ONNX Runtime
    reads them only from the graph's own directory; copies on another file system. Returns the
    model, without weights.
    """
    merged = onnx.ModelProto()
    for position, engine in enumerate(engines):
        model = onnx.load(bundle.file(engine.graph), load_external_data=False)
        names = _new_names(model.graph, engines, position)
        if position == 0:
            merged.ir_version = model.ir_version
            merged.opset_import.extend(model.opset_import)
            merged.graph.name = "merged"
        last = position == len(engines) - 1
        chained = None if last else engine.tensor(TensorRole.HIDDEN_STATES_OUT).name
        _append(merged.graph, model.graph, names, chained)
        for weights in engine.weights:
            _link(bundle.file(weights), directory / Path(weights).name)
    onnx.save(merged, directory / MERGED_NAME)
    return merged


def merged_name(engines: Sequence[EngineSpec], position: int, role: TensorRole) -> str:
    """Return the merged graph's name for the tensor of ``role`` of ``engines[position]``.

    ``layer_002/past_key`` for the engine's own; shared inputs keep their names; hidden_states is
    the hidden_states_out of the previous engine.
    """
    engine = engines[position]
    if role in _SHARED:
        return engine.tensor(role).name
    if role == TensorRole.HIDDEN_STATES and position > 0:
        return merged_name(engines, position - 1, TensorRole.HIDDEN_STATES_OUT)
    return f"{engine.name}/{engine.tensor(role).name}"


def _new_names(
    graph: onnx.GraphProto, engines: Sequence[EngineSpec], position: int
) -> dict[str, str]:
    """Map old names to new ones for every tensor of one engine's graph; "" (no tensor) stays."""
    engine = engines[position]
    tensors = [name for node in graph.node for name in (*node.input, *node.output)]
    names = {name: f"{engine.name}/{name}" if name else "" for name in tensors}
    for tensor in (*engine.inputs, *engine.outputs):
        names[tensor.name] = merged_name(engines, position, tensor.role)
    return names


def _append(
    merged: onnx.GraphProto, graph: onnx.GraphProto, names: dict[str, str], chained: str | None
) -> None:
    """Append one engine's nodes, weights and own inputs and outputs under their new names.

    ``chained`` is the output that only the next engine reads.
    """
    made = {output for node in merged.node for output in node.output}
    known = {value.name for value in merged.input}
    for node in graph.node:
        copy = merged.node.add()
        copy.CopyFrom(node)
        copy.name = f"{names[node.output[0]]}:{node.op_type}"
        copy.input[:] = [names[name] for name in node.input]
        copy.output[:] = [names[name] for name in node.output]
    for tensor in graph.initializer:
        merged.initializer.add().CopyFrom(tensor)
        merged.initializer[-1].name = names[tensor.name]
    for value in graph.input:
        if names[value.name] not in made | known:
            merged.input.add().CopyFrom(value)
            merged.input[-1].name = names[value.name]
    for value in graph.output:
        if value.name != chained:
            merged.output.add().CopyFrom(value)
            merged.output[-1].name = names[value.name]


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copyfile(source, target)
