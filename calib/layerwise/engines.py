"""Torch modules of single engines: float32, observed, or with static fake quantisation."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...engines.manifest import EngineKind, ModelSpec, TensorRole
from ...exporter.architecture.architecture import engine_parameters
from ...exporter.architecture.decoder_modules import engine_module
from ...exporter.architecture.modules import Projection, call_by_role
from ...exporter.architecture.weights import TensorReader
from ...exporter.quantization.linear import (
    FLOAT8_MAXIMUM,
    INT8_MAXIMUM,
    Float8Quantizer,
    LinearChannelQuantizer,
)
from ...exporter.quantization.quantize import WeightQuantizer
from ...exporter.quantization.ranges import Ranges

StaticFormat = Literal["int8", "fp8"]
ProductObserver = Callable[[str, Tensor, Tensor], None]
"""Called with a weight's name, the product's input [..., K] and its output [..., N]."""


def load_engine(
    kind: EngineKind, model: ModelSpec, reader: TensorReader, layer_index: int | None = None
) -> nn.Module:
    """Load one engine's float32 module; layers are for ``run_layer``, not for cached decoding."""
    module = engine_module(kind, model, torch.float32, _attention_without_cache)
    for parameter in engine_parameters(kind, model, layer_index):
        weight = np.array(parameter.load(reader), np.float32, order="C")
        module.get_parameter(parameter.name).data = torch.from_numpy(weight)
    return module


def run_embedding(embedding: nn.Module, input_ids: Tensor, position_ids: Tensor) -> Tensor:
    """Embed [1, n] token ids at positions [1, n] → [n, E]; rotary families ignore positions."""
    tensors = {TensorRole.INPUT_IDS: input_ids, TensorRole.POSITION_IDS: position_ids}
    hidden, *_ = call_by_role(embedding, tensors)
    return hidden[0]


def run_layer(
    layer: nn.Module, hidden_states: Tensor, position_ids: Tensor, mask: Tensor
) -> Tensor:
    """Run [n, E] at positions [n] → [n, E]; bool ``mask`` [1, 1, n, n] says who attends to whom."""
    no_cache = torch.empty(0)
    tensors = {
        TensorRole.HIDDEN_STATES: hidden_states[None],
        TensorRole.POSITION_IDS: position_ids[None],
        TensorRole.PAST_KEY: no_cache,
        TensorRole.PAST_VALUE: no_cache,
        TensorRole.WRITE_INDICES: no_cache,
        TensorRole.ATTENTION_MASK: mask,
    }
    hidden, *_ = call_by_role(layer, tensors)
    return hidden[0]


@contextmanager
def observed(
    module: nn.Module, products: Iterable[str], observer: ProductObserver
) -> Iterator[None]:
    """Call ``observer`` whenever ``module`` computes one of ``products``, named by weight."""

    def show(name: str, _: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        observer(name, inputs[0], output)

    handles = [
        module.get_submodule(_path(name)).register_forward_hook(partial(show, name))
        for name in products
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class QuantizedProjection(nn.Module):
    """A product as TensorRT computes it: DQ(Q(x)) @ DQ(Q(w)) + bias, with a single scale for x."""

    def __init__(self, projection: Projection, static_format: StaticFormat, largest: float) -> None:
        super().__init__()
        numbers = _FORMATS[static_format]
        self._round = numbers.round_activation
        self._largest = largest
        self._weight = torch.from_numpy(numbers.weight.dequantized(projection.weight.numpy()))
        self._bias = projection.bias

    def forward(self, inputs: Tensor) -> Tensor:
        """Multiply [..., K] → [..., N]."""
        product = torch.matmul(self.round_inputs(inputs), self._weight)
        return product if self._bias is None else product + self._bias

    def round_inputs(self, inputs: Tensor) -> Tensor:
        """Return ``inputs`` rounded to the format."""
        return self._round(inputs, self._largest)


def quantized_products(
    module: nn.Module, static_format: StaticFormat, ranges: Ranges
) -> dict[str, QuantizedProjection]:
    """Return the products of ``module`` with quantised weights and inputs, by weight name."""
    products = {}
    for name, largest in ranges.items():
        projection = module.get_submodule(_path(name))
        assert isinstance(projection, Projection), name
        products[name] = QuantizedProjection(projection, static_format, largest)
    return products


@contextmanager
def replaced(module: nn.Module, products: Mapping[str, QuantizedProjection]) -> Iterator[None]:
    """Replace the products of ``module`` by ``products`` inside the ``with`` block."""
    own = {name: module.get_submodule(_path(name)) for name in products}
    for name, product in products.items():
        module.set_submodule(_path(name), product)
    try:
        yield
    finally:
        for name, projection in own.items():
            module.set_submodule(_path(name), projection)


def round_to_int8(inputs: Tensor, largest: float) -> Tensor:
    """Round to the nearest multiple of ``largest / 127``, from -128 to 127 times it.

    With ``largest`` 1.27: (0.014, -2.0, 0.5) → (0.01, -1.28, 0.5).
    """
    scale = largest / INT8_MAXIMUM
    return torch.clamp(torch.round(inputs / scale), -INT8_MAXIMUM - 1, INT8_MAXIMUM) * scale


def round_to_fp8(inputs: Tensor, largest: float) -> Tensor:
    """Round to the nearest e4m3 values scaled by ``largest / 448``, saturating."""
    scale = largest / FLOAT8_MAXIMUM
    scaled = torch.clamp(inputs / scale, -FLOAT8_MAXIMUM, FLOAT8_MAXIMUM)
    return scaled.to(torch.float8_e4m3fn).float() * scale


@dataclass(frozen=True)
class _Format:
    round_activation: Callable[[Tensor, float], Tensor]
    weight: WeightQuantizer


_FORMATS: Mapping[StaticFormat, _Format] = {
    "int8": _Format(round_to_int8, LinearChannelQuantizer("float32")),
    "fp8": _Format(round_to_fp8, Float8Quantizer("float32")),
}
STATIC_FORMATS: tuple[StaticFormat, ...] = tuple(_FORMATS)


class SquareSums:
    """Float64 sums of squares of a product's tensors, by name, and the number of tokens."""

    def __init__(self) -> None:
        self.tokens = 0
        self._sums = defaultdict[str, float](float)

    def add(self, **tensors: Tensor) -> None:
        """Add tensors [..., N] of some tokens."""
        self.tokens += next(iter(tensors.values()))[..., 0].numel()
        for name, values in tensors.items():
            self._sums[name] += float(values.double().square().sum())

    def relative(self, error: str, whole: str) -> float:
        """Return the root mean square of ``error`` ÷ that of ``whole``; 0 if the latter is 0."""
        ratio = self._sums[error] / self._sums[whole] if self._sums[whole] > 0 else 0.0
        return math.sqrt(ratio)


def _attention_without_cache(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past_key: Tensor,
    past_value: Tensor,
    write_indices: Tensor,
    attention_mask: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attend to all tokens at once without a cache; query, key and value are [1, N, n, D]."""
    attended = F.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, enable_gqa=query.shape[1] != key.shape[1]
    )
    return attended, key, value


def _path(weight: str) -> str:
    return weight.removesuffix(".weight")
