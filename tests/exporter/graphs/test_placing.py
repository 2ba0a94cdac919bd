"""Norms and rotation of heads become operands of Attention; layers compute the same.

Rows are at different positions: a ragged prompt, a step, then two tokens per row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from built_engines import causal_mask
from canonical_graphs import canonical_graph
from engine_chain import StateReader
from onnx import TensorProto
from tiny_models import LLAMA_BASE, random_model
from transformers import PreTrainedModel

from skipdec.engines.kernels.library import find_library
from skipdec.engines.manifest import EngineKind, ModelSpec, PrecisionSpec, TensorRole
from skipdec.exporter.architecture.architecture import engine_parameters
from skipdec.exporter.architecture.decoder_modules import engine_module
from skipdec.exporter.architecture.model_config import model_spec
from skipdec.exporter.graphs.lowering import LoweredEngine
from skipdec.exporter.graphs.skipdec import lower
from skipdec.exporter.quantization.packed import weight_quantizer

YARN = {"rope_type": "yarn", "rope_theta": 99.0, "factor": 4.0}
MODELS: dict[str, dict[str, Any]] = {  # changes of LLAMA_BASE
    "scaled": {"rope_parameters": YARN | {"original_max_position_embeddings": 16}},
    "normed": {"model_type": "qwen3", "head_dim": 24},
    "partial": {"model_type": "phi3", "hidden_size": 96, "partial_rotary_factor": 0.5},
    "normed whole": {"model_type": "olmo2", "num_key_value_heads": 3},
}
OPERANDS = {  # of Attention: queries, keys and values (1 packed or 3), rates, norms
    "scaled": (1, "self_attn.inv_freq"),
    "normed": (1, "self_attn.inv_freq", "self_attn.q_norm.weight", "self_attn.k_norm.weight"),
    "partial": (1, "self_attn.inv_freq"),
    "normed whole": (3, "self_attn.inv_freq"),
}
CAPACITY = 12
STEPS = [([0, 0, 0], 5), ([5, 1, 3], 1), ([6, 2, 4], 2)]  # first positions, tokens


def tiny(name: str) -> tuple[ModelSpec, PreTrainedModel]:
    config = {"model_type": "llama", **LLAMA_BASE, "num_hidden_layers": 1}
    model = random_model(config | MODELS[name])
    return model_spec(model.config.to_dict(), "tiny", 40), model


def lowered_layer(model: ModelSpec) -> LoweredEngine:
    return lower(
        canonical_graph(EngineKind.LAYER, model, "float32"),
        EngineKind.LAYER,
        model,
        PrecisionSpec(),
    )


class Layer:
    """A lowered layer with weights, and caches that it appends to; unused memory is NaN."""

    def __init__(self, lowered: LoweredEngine, weights: dict[str, Any], model: ModelSpec) -> None:
        graph = lowered.graph.clone()
        for name, value in graph.graph.initializers.items():
            if value.const_value is None:
                value.const_value = ir.tensor(weights[name], name=name)
        library = find_library()
        assert library is not None
        options = onnxruntime.SessionOptions()
        library.register(options, threads=1)
        self._session = onnxruntime.InferenceSession(
            ir.to_proto(graph).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        shape = (3, model.num_kv_heads, CAPACITY, model.head_dim)
        self._caches = {name: np.full(shape, np.nan, np.float32) for name in ("key", "value")}

    def step(self, hidden_states: np.ndarray, first: list[int]) -> np.ndarray:
        tokens = hidden_states.shape[1]
        lengths = np.array(first) + tokens
        feeds = {
            "hidden_states": hidden_states,
            "write_indices": np.array(first),
            "position_ids": np.array(first)[:, None] + np.arange(tokens),
            "seqlens_k": (lengths - 1).astype(np.int32),
            "total_sequence_length": np.array(lengths.max(), np.int32),
        }
        binding = self._session.io_binding()
        for name in {each.name for each in self._session.get_inputs()} & set(feeds):
            binding.bind_cpu_input(name, feeds[name])
        binding.bind_output("hidden_states_out", "cpu")
        for name, cache in self._caches.items():
            place = ("cpu", 0, TensorProto.FLOAT, cache.shape, cache.ctypes.data)
            binding.bind_input(f"past_{name}", *place)
            binding.bind_output(f"present_{name}", *place)
        self._session.run_with_iobinding(binding)
        result: np.ndarray = binding.get_outputs()[0].numpy()
        return result


@pytest.mark.parametrize("name", MODELS)
def test_attention_takes_norms_and_rates_and_the_layer_no_positions(name: str) -> None:
    lowered = lowered_layer(tiny(name)[0])
    graph = lowered.graph.graph
    (node,) = (each for each in graph if each.op_type == "Attention")
    assert sum(value is not None for value in node.inputs[:3]) == OPERANDS[name][0]
    assert tuple(value.name for value in node.inputs[6:] if value is not None) == OPERANDS[name][1:]
    assert not {"RotaryEmbedding", "Cos", "Transpose", "Reshape"} & {each.op_type for each in graph}
    assert TensorRole.POSITION_IDS not in [value.name for value in graph.inputs]
    assert [each.name for each in lowered.signature.inputs] == [each.name for each in graph.inputs]


@pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")
@pytest.mark.parametrize("name", MODELS)
def test_lowered_layers_equal_the_module(name: str) -> None:
    model, reference = tiny(name)
    parameters = engine_parameters(EngineKind.LAYER, model, 0)
    reader = StateReader(reference)
    weights = {each.name: np.ascontiguousarray(each.load(reader)) for each in parameters}
    module = engine_module(EngineKind.LAYER, model)
    for key, weight in weights.items():
        module.get_parameter(key).data = torch.from_numpy(weight)
    quantizer = weight_quantizer(EngineKind.LAYER, PrecisionSpec())
    assert quantizer is not None
    for each in parameters:
        if weights[each.name].ndim == 2:
            packed = quantizer.fitting(each).encode(weights[each.name])
            weights |= {f"{each.name}.{part}": tensor for part, tensor in packed.items()}
    lowered = lowered_layer(model)
    layer = Layer(lowered, weights, model)
    past = [torch.zeros(3, model.num_kv_heads, CAPACITY, model.head_dim)] * 2
    for first, tokens in STEPS:
        hidden = np.random.default_rng(tokens).standard_normal((3, tokens, model.hidden_size))
        hidden = hidden.astype(np.float32)
        starts = np.array(first)
        positions = torch.from_numpy(starts[:, None] + np.arange(tokens))
        mask = torch.from_numpy(causal_mask(starts, tokens, CAPACITY))
        expected, *past = module(
            torch.from_numpy(hidden), *past, torch.from_numpy(starts), mask, positions
        )
        np.testing.assert_allclose(layer.step(hidden, first), expected, rtol=0, atol=2e-5)
