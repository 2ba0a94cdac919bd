"""Reference torch modules for engines, with the weights that the bundle should contain."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from ...engines.kernels.library import DOMAIN
from ...engines.manifest import EngineKind, ModelSpec, PrecisionSpec
from ...engines.memory import Array
from ...engines.targets import target_of
from ..architecture.architecture import engine_parameters
from ..architecture.decoder_modules import engine_module
from ..architecture.modules import Projection
from ..architecture.weights import TensorReader, engine_name
from ..quantization.migration import Migration, migrated_reader
from ..quantization.packed import PackedChannelQuantizer, PackedQuantizer
from ..quantization.quantize import (
    ACTIVATION_MAXIMUM,
    ChannelQuantizer,
    WeightQuantizer,
    quantizer_of,
)

# Sums of this many products of two numbers up to 127 are exact in float32 in any order:
# 1024 * 127 * 127 < 2 ** 24.
_EXACT_INPUTS = 1024


class IntegerProjection(nn.Module):
    """The int8 product: one activation scale per token, one weight scale per output channel.

    ``weight`` int8 [K, N], ``scale`` float32 [N]. Integer sums are exact, so a token's result does
    not depend on the rest of the batch.
    """

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight, self.scale, self.bias = weight, scale, bias

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [..., K] to [..., N]."""
        peak = inputs.abs().amax(-1, keepdim=True)  # [..., 1]
        token_scale = torch.where(peak > 0, peak, 1) / ACTIVATION_MAXIMUM
        codes = torch.round(inputs / token_scale)  # [..., K]
        sums = torch.zeros(*inputs.shape[:-1], self.weight.shape[1], dtype=torch.float64)
        for start in range(0, len(self.weight), _EXACT_INPUTS):
            chunk = slice(start, start + _EXACT_INPUTS)
            sums += codes[..., chunk] @ self.weight[chunk].float()  # [..., N]
        product = sums.float() * token_scale * self.scale
        return product if self.bias is None else product + self.bias


class Reference:
    """Builds the references of engines, with one engine's weights in memory at a time.

    ``form``, a name in ``TARGETS``, determines the quantisation of weights; plans are compiled from
    weights rounded to the engine's float type. ``migration``, if any, is applied first. Weights are
    float32 with the errors of ``precision``: rounded to float16, or quantised and, except for int8,
    dequantised. Activations are float32, even for float16 bundles.
    """

    def __init__(
        self,
        model: ModelSpec,
        precision: PrecisionSpec,
        reader: TensorReader,
        form: str = "onnxruntime",
        migration: Migration | None = None,
    ) -> None:
        self.model = model
        self.precision = precision
        self.form = form
        self._reader = reader
        self._migration = migration

    @property
    def has_own_kernels(self) -> bool:
        """Return True if the engines use skipdec's operators."""
        return self.form == DOMAIN

    def is_exact(self, kind: EngineKind) -> bool:
        """Return True if a product's result never depends on other rows."""
        return isinstance(self.quantizer(kind), PackedQuantizer)

    def reader(self, kind: EngineKind, layer_index: int | None) -> TensorReader:
        """Return a reader of the tensors of one engine."""
        if self._migration is None:
            return self._reader
        factors = self._migration.of(engine_name(kind, layer_index))
        return migrated_reader(self._reader, factors, kind, layer_index, self.model)

    def quantizer(self, kind: EngineKind) -> WeightQuantizer | None:
        """Return the quantiser of products in an engine of ``kind``, if any."""
        return quantizer_of(self.form, kind, self.precision)


class ReferenceBuilder:
    """Fills one engine's module and yields its tensors on the way, so it is built only once."""

    def __init__(self, reference: Reference, kind: EngineKind, layer_index: int | None) -> None:
        self._quantizer = reference.quantizer(kind)
        self.module = engine_module(kind, reference.model)
        self._reference = reference
        self._reader = reference.reader(kind, layer_index)
        self._parameters = engine_parameters(kind, reference.model, layer_index)

    def tensors(self) -> Iterator[tuple[str, Array]]:
        """Yield the name and content of every tensor that the engine's graph must contain.

        Once exhausted, ``module`` is ready.
        """
        precision, target = self._reference.precision, target_of(self._reference.form)
        integers: dict[str, dict[str, Array]] = {}
        for parameter in self._parameters:
            array = parameter.load(self._reader)
            if self._quantizer is None or not parameter.is_product:
                dtype = parameter.float_dtype(precision, target.has_float32_activations)
                array = np.array(array, dtype, order="C")
                yield parameter.name, array
                self._set(parameter.name, array)
                continue
            if target.is_compiled:
                array = array.astype(precision.dtype)
            quantizer = self._quantizer.fitting(parameter)
            tensors = quantizer.encode(array)
            del array
            yield from ((f"{parameter.name}.{suffix}", each) for suffix, each in tensors.items())
            in_size, out_size = parameter.shape
            if isinstance(quantizer, PackedChannelQuantizer):
                tensors = quantizer.unpack(tensors, (in_size, out_size))
            if isinstance(quantizer, ChannelQuantizer | PackedChannelQuantizer):
                integers[parameter.name.removesuffix(".weight")] = tensors
            else:
                self._set(parameter.name, quantizer.decode(tensors, (in_size, out_size)))
        for path, tensors in integers.items():
            projection = self.module.get_submodule(path)
            assert isinstance(projection, Projection)
            weight = torch.from_numpy(tensors["quantized"])
            scale = torch.from_numpy(tensors["scale"])
            self.module.set_submodule(path, IntegerProjection(weight, scale, projection.bias))

    def filled(self) -> nn.Module:
        """Return ``module`` with its weights, without looking at the tensors."""
        for _ in self.tensors():
            pass
        return self.module

    def _set(self, name: str, array: Array) -> None:
        tensor = torch.from_numpy(np.ascontiguousarray(array, np.float32))
        parameter = self.module.get_parameter(name)
        assert parameter.shape == tensor.shape, (name, parameter.shape, tensor.shape)
        parameter.data = tensor
