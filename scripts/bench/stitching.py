"""Measures what running layers as separate engines costs against one graph of the same layers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import onnxruntime

from ..engines.bundle import EngineBundle
from ..engines.manifest import EngineSpec, TensorRole
from ..engines.memory import Array
from ..engines.ort import OrtBackend, shared_thread_pool_size
from .merge import MERGED_NAME, merge_engines, merged_name

Tensors = dict[TensorRole, Array]


@dataclass(frozen=True)
class StitchingCost:
    """Seconds of one decode step of all layers, one pair a repetition."""

    stitched: tuple[float, ...]
    merged: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Stitched ÷ merged, median of the repetitions' ratios."""
        return median(s / m for s, m in zip(self.stitched, self.merged, strict=True))


class StitchingBench:
    """The layers of a bundle twice, as engines and as one graph, bound to the same buffers.

    One row that attends to ``length`` positions. ``hidden_states`` float [1, 1, E] is the input of
    both and is overwritten by both. Threads: the process-wide pool where there is one.
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
        """Time both in turn, after one run of each to warm up."""
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
    """Arrays of one decode step of one row by role, for each layer; caches hold small numbers."""
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
    }
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
