"""Build and run single engines of tiny random models and their torch modules."""

from __future__ import annotations

import inspect
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from canonical_graphs import canonical_graph
from numpy.typing import NDArray

from skipdec.engines.kernels.library import DOMAIN, require_library
from skipdec.engines.manifest import NUM_JOINED, EngineKind, FloatType, ModelSpec, PrecisionSpec
from skipdec.exporter.architecture.architecture import engine_parameters, expected_tensors
from skipdec.exporter.architecture.decoder_modules import engine_module
from skipdec.exporter.architecture.llama.structure import LlamaSpec
from skipdec.exporter.architecture.opt import OptSpec
from skipdec.exporter.architecture.weights import TensorReader
from skipdec.exporter.building.engine import BuiltEngine, build_engine

Array = NDArray[Any]

TOLERANCE = {"float32": 2e-5, "float16": 3e-2}
"""Largest errors of a layer of ``RandomReader``'s weights, by dtype."""

_CAPACITY = 12

STRUCTURES: dict[str, dict[str, Any]] = {
    "pre_norm": {},
    "post_norm": {
        "do_layer_norm_before": False,
        "final_layer_norm": False,
        "word_embed_proj_dim": 16,
    },
    "no_bias": {
        "enable_bias": False,
        "layer_norm_elementwise_affine": False,
        "activation_function": "gelu",
    },
    "untied": {"tie_word_embeddings": False},
    "llama": {  # of the LLaMA family, with every optional part
        "family": "llama",
        "num_kv_heads": 2,
        "head_dim": 16,
        "qkv_bias": True,
        "output_bias": True,
        "mlp_bias": True,
        "head_norms": "head",
        "rms_norm_eps": 1e-3,
        "rotary_dim": 12,
        "rope_type": "linear",
        "rope_theta": 100.0,
        "rope_factor": 2.0,
        "rope_scale": 1.2,
    },
}


def tiny_spec(structure: str = "pre_norm", **changes: Any) -> ModelSpec:  # noqa: ANN401
    """Return a model of 2 layers, E = 32, N = 4, F = 96, V = 61."""
    sizes = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "ffn_dim": 96, "vocab_size": 61}
    lengths = {"max_position_embeddings": 40, "max_seq_len": 40}
    facts = {"name": structure, **sizes, **lengths, **STRUCTURES[structure], **changes}
    if "family" in facts:
        return LlamaSpec(**facts).model_spec()
    return OptSpec(**{"word_embed_proj_dim": facts["hidden_size"], **facts}).model_spec()


class RandomReader:
    """Reads equal tensors of a model, and of a draft layer's joins, each time.

    Matrices are N(0, 0.2), vectors N(0, 0.1), norm weights around 1. ``reads`` counts the reads.
    """

    def __init__(self, model: ModelSpec, dtype: FloatType = "float32") -> None:
        joins = {
            source: parameter.source_shape(position)
            for kind in NUM_JOINED
            for parameter in engine_parameters(kind, model, None)
            for position, source in enumerate(parameter.sources)
        }
        self.shapes = expected_tensors(model) | joins
        self.dtype = dtype
        self.reads: list[str] = []

    def read(self, name: str) -> Array:
        """Return a fresh array."""
        self.reads.append(name)
        shape = self.shapes[name]
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        array = rng.standard_normal(shape, np.float32)
        array *= np.float32(0.2 if len(shape) > 1 else 0.1)
        if name.endswith("norm.weight"):
            array += 1
        return array.astype(self.dtype, copy=False)


def build(
    kind: EngineKind,
    model: ModelSpec,
    directory: Path,
    precision: PrecisionSpec | None = None,
    target: str = "onnxruntime",
) -> BuiltEngine:
    """Build one engine (of layer 0 if it is a layer) under ``directory``."""
    precision = precision or PrecisionSpec()
    graph = canonical_graph(kind, model, precision.dtype)
    layer_index = 0 if kind is EngineKind.LAYER else None
    reader = RandomReader(model)
    return build_engine(graph, kind, layer_index, model, precision, target, reader, directory)


def module(
    kind: EngineKind, model: ModelSpec, reader: TensorReader | None = None, layer_index: int = 0
) -> torch.nn.Module:
    """Return one engine's float32 torch module, by default with ``RandomReader``'s weights."""
    result = engine_module(kind, model)
    reader = reader or RandomReader(model)
    index = layer_index if kind is EngineKind.LAYER else None
    for parameter in engine_parameters(kind, model, index):
        weight = np.ascontiguousarray(parameter.load(reader))
        result.get_parameter(parameter.name).data = torch.from_numpy(weight)
    return result


class Session:
    """An engine in its own session, with one thread."""

    def __init__(self, directory: Path, built: BuiltEngine) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        if built.spec.graph.startswith(f"engines/{DOMAIN}/"):
            require_library("this test").register(options, threads=1)
        self._session = onnxruntime.InferenceSession(
            directory / built.spec.graph, options, providers=["CPUExecutionProvider"]
        )

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return all outputs by name; the given arrays stay unchanged."""
        names = [output.name for output in self._session.get_outputs()]
        return dict(zip(names, self._session.run(names, dict(inputs)), strict=True))

    def run_layer_in_place(
        self, hidden_states: Array, key: Array, value: Array, lengths: Array
    ) -> None:
        """Run a layer with inputs and outputs in the same memory, as in decoding.

        ``lengths`` [B] is each row's total length, including these tokens, which are a whole prompt
        or one token of each row.
        """
        binding = self._session.io_binding()
        tensors = {"hidden_states": hidden_states, "past_key": key, "past_value": value}
        outputs = ("hidden_states_out", "present_key", "present_value")
        for (name, array), output in zip(tensors.items(), outputs, strict=True):
            memory = onnxruntime.OrtValue.ortvalue_from_numpy(array)
            binding.bind_ortvalue_input(name, memory)
            binding.bind_ortvalue_output(output, memory)
        tokens = hidden_states.shape[1]
        starts = np.zeros_like(lengths) if tokens > 1 else lengths - 1
        positions = {
            "position_ids": position_ids(starts, tokens),
            "write_indices": starts,
            "seqlens_k": (lengths - 1).astype(np.int32),
            "total_sequence_length": np.array(lengths.max(), np.int32),
        }
        for name in {each.name for each in self._session.get_inputs()} & positions.keys():
            binding.bind_cpu_input(name, positions[name])
        self._session.run_with_iobinding(binding)


def optimised(model: Path | bytes, directory: Path) -> onnx.GraphProto:
    """Return the graph to which a CPU session optimises ``model``, via a file in ``directory``."""
    path = directory / "optimised.onnx"
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 3  # the file is only for this machine
    onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return onnx.load(path, load_external_data=False).graph


def operators(graph: onnx.GraphProto) -> Counter[str]:
    """Count the operators of a graph, without casts."""
    return Counter(node.op_type for node in graph.node if node.op_type != "Cast")


def position_ids(starts: Array, tokens: int) -> Array:
    """Return int64 [B, S]: token s of row b is at ``starts[b] + s``."""
    return (starts[:, None] + np.arange(tokens)).astype(np.int64)


def call_layer(layer: torch.nn.Module, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Call a layer's module with hidden states, caches, starts and mask, and optional positions."""
    wanted = inspect.signature(layer.forward).parameters
    hidden, starts = tensors[0], tensors[3]
    positions = torch.from_numpy(position_ids(starts.numpy(), hidden.shape[1]))
    outputs: tuple[torch.Tensor, ...] = layer(
        *tensors, *((positions,) if "position_ids" in wanted else ())
    )
    return outputs


def causal_mask(starts: Array, tokens: int, capacity: int) -> Array:
    """Return bool [B, 1, S, T]: token s of row b sees positions up to ``starts[b] + s``."""
    queries = starts[:, None] + np.arange(tokens)  # [B, S]
    return queries[:, None, :, None] >= np.arange(capacity)


def decode_ragged(
    model: ModelSpec, directory: Path, precision: PrecisionSpec, target: str = "onnxruntime"
) -> list[tuple[Array, Array]]:
    """Prefill rows of 5, 1 and 3 tokens, then decode two single tokens in place.

    Returns (engine, module) hidden states of the valid positions, step by step. The engine's
    cache starts as NaN, the module's as zeros.
    """
    session = Session(directory, build(EngineKind.LAYER, model, directory, precision, target))
    reference = module(EngineKind.LAYER, model)
    cache = (3, model.num_kv_heads, _CAPACITY, model.head_dim)
    key, value = np.full(cache, np.nan, precision.dtype), np.full(cache, np.nan, precision.dtype)
    past = [torch.zeros(cache), torch.zeros(cache)]
    lengths, rng, steps = np.array([5, 1, 3]), np.random.default_rng(0), []
    for tokens in (5, 1, 1):
        starts = np.zeros(3, np.int64) if tokens > 1 else lengths
        lengths = lengths if tokens > 1 else lengths + 1
        hidden = rng.standard_normal((3, tokens, model.hidden_size)).astype(precision.dtype)
        mask = torch.from_numpy(causal_mask(starts, tokens, _CAPACITY))
        inputs = torch.from_numpy(hidden.astype(np.float32))
        expected, *past = call_layer(reference, inputs, *past, torch.from_numpy(starts), mask)
        session.run_layer_in_place(hidden, key, value, lengths)
        valid = np.arange(tokens) < (lengths - starts)[:, None]  # [B, S]
        steps.append((hidden[valid], expected.numpy()[valid]))
    return steps
