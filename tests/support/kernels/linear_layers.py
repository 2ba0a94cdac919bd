"""Make layers of skipdec's linear operators, each with its exact definition in numpy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
from one_operator import operator_session

from skipdec.engines.kernels.packing import pack_float, pack_int8
from skipdec.exporter.quantization.packed import (
    FloatQuantizer,
    PackedBlockQuantizer,
    PackedChannelQuantizer,
    PackedInt4Quantizer,
    PackedInt8BlockQuantizer,
    PackedQuantizer,
)

Array = np.ndarray[Any, Any]

NONE, RELU, GELU, SILU = 0, 1, 2, 3
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
FORMS = ("int8", "int4-32", "int4-64", "int4-128", "int8-32", "int8-64", "int8-128", *DTYPES)
GATED: dict[str, PackedQuantizer] = {
    "gated int8": PackedChannelQuantizer(is_gated=True),
    "gated int4-32": PackedInt4Quantizer(32, is_gated=True),
    "gated int4-128": PackedInt4Quantizer(128, is_gated=True),
    "gated int8-64": PackedInt8BlockQuantizer(64, is_gated=True),
    **{f"gated {dtype}": FloatQuantizer(dtype, is_gated=True) for dtype in DTYPES},
}


@dataclass(frozen=True)
class LinearLayer(ABC):
    """A weight [K, N], an optional bias float32 [N], and an activation."""

    weight: Array
    bias: Array | None = None
    activation: int = NONE

    @abstractmethod
    def node(self) -> tuple[str, dict[str, Array], dict[str, int]]:
        """Return the operator, its packed weights by operand, and its attributes."""

    @abstractmethod
    def check(self, y: Array, x: Array, residual: Array | None = None) -> None:
        """Assert that ``y`` is the result for ``x``, except for GELU."""

    def rows(self, count: int, seed: int = 0) -> Array:
        random = np.random.default_rng(seed)
        return random.standard_normal((count, self.weight.shape[0]), np.float32)

    def residual(self, count: int) -> Array:
        shape = count, self.weight.shape[1]
        return np.random.default_rng(1).standard_normal(shape, np.float32)

    def session(
        self, residual: bool = False, threads: int = 1, **changed: Array | int
    ) -> onnxruntime.InferenceSession:
        """Open the operator with ``changed`` weights, attributes or bias."""
        operator, constants, attributes = self.node()
        operands = ["x", *constants, "" if self.bias is None else "bias"]
        if self.bias is not None:
            constants["bias"] = self.bias
        attributes["activation"] = self.activation
        constants |= {name: value for name, value in changed.items() if name in constants}
        attributes |= {name: value for name, value in changed.items() if name in attributes}
        operands += ["residual" if residual else ""]
        return operator_session(operator, operands, constants, attributes, threads=threads)

    def run(self, x: Array, residual: Array | None = None, threads: int = 1) -> Array:
        feeds = {"x": x} if residual is None else {"x": x, "residual": residual}
        y: Array = self.session(residual is not None, threads).run(None, feeds)[0]
        return y


class ExactLayer(LinearLayer):
    """A layer whose results have the bits of `expected`."""

    @abstractmethod
    def product(self, x: Array) -> Array:
        """Return x · weight."""

    def expected(self, x: Array, residual: Array | None = None) -> Array:
        y = self.product(x)
        if self.bias is not None:
            y = y + self.bias
        if self.activation == RELU:
            y = np.maximum(y, np.float32(0))
        return y if residual is None else residual + y

    def check(self, y: Array, x: Array, residual: Array | None = None) -> None:
        np.testing.assert_array_equal(y, self.expected(x, residual))


@dataclass(frozen=True)
class QuantizedLayer(ExactLayer):
    """QuantizedLinear: codes int8 [K, N], and their scale [N]."""

    scale: Array | None = None

    def node(self) -> tuple[str, dict[str, Array], dict[str, int]]:
        assert self.scale is not None
        weight, offset = pack_int8(self.weight)
        constants = {"weight": weight, "scale": self.scale, "offset": offset}
        return "QuantizedLinear", constants, {}

    def product(self, x: Array) -> Array:
        """Compute in numpy, whose integer sums and roundings are exact."""
        row_scale = np.abs(x).max(-1, keepdims=True) / np.float32(127)
        with np.errstate(divide="ignore", invalid="ignore"):
            codes = np.nan_to_num(np.clip(np.rint(x / row_scale), -128, 127)).astype(np.int64)
        sums = (codes @ self.weight.astype(np.int64)).astype(np.float32)
        y: Array = sums * self.scale * row_scale
        return y


@dataclass(frozen=True)
class BlockLayer(ExactLayer):
    """BlockLinear4 and 8 of a float32 weight."""

    block_size: int = 32
    bits: int = 4

    @property
    def quantizer(self) -> PackedBlockQuantizer:
        kinds = {4: PackedInt4Quantizer, 8: PackedInt8BlockQuantizer}
        return kinds[self.bits](self.block_size)

    def node(self) -> tuple[str, dict[str, Array], dict[str, int]]:
        tensors = self.quantizer.encode(self.weight)
        constants = {"weight": tensors["quantized"], "scale": tensors["scale"]}
        attributes = {"block_size": self.block_size, "N": self.weight.shape[1]}
        return self.quantizer.operator, constants, attributes

    def product(self, x: Array) -> Array:
        """Compute the definition exactly.

        Worked, one block of 32: x = (1, -0.5, 0, …) has scale 1/127 and codes (127, -64, 0, …), for
        -63.5 rounds to the even -64; the column (0.5, -1, 0, …) has scale 0.125 and codes
        (12, 0, 8, …). y = float32(127 · 4 + 64 · 8) · (0.125 · 1/127) = 1020 · 0.000984252.
        """
        tensors = self.quantizer.plain.encode(self.weight)
        packed, scale = tensors["quantized"], tensors["scale"].astype(np.float32)  # [N, blocks]
        columns, blocks = scale.shape
        codes = packed - 128.0
        if self.bits == 4:
            codes = np.stack((packed & 15, packed >> 4), -1).reshape(columns, blocks, -1) - 8.0
        padding = blocks * self.block_size - x.shape[-1]
        blocked = np.pad(x, ((0, 0), (0, padding))).reshape(len(x), blocks, -1)
        x_scale = np.abs(blocked).max(-1) / np.float32(127)  # [M, blocks]
        x_scale[x_scale < 2.0**-126] = 0
        inverse = np.divide(np.float32(1), x_scale, where=x_scale > 0, out=np.zeros_like(x_scale))
        x_codes = np.rint(blocked * inverse[..., None])
        y = np.zeros((len(x), columns), np.float32)
        for block in range(blocks):
            sums = x_codes[:, block] @ codes[:, block].T  # integers, exact in float64
            both = scale[:, block] * x_scale[:, block, None]
            y = fused_multiply_add(sums.astype(np.float32), both, y)
        return y


def fused_multiply_add(a: Array, b: Array, c: Array) -> Array:
    """Return float32(a · b + c), rounded once: float64 rounds to odd, so that float32 is right."""
    product, addend = a.astype(np.float64) * b, c.astype(np.float64)
    total = product + addend
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)
    is_even = total.view(np.int64) & 1 == 0
    towards = np.where(error > 0, np.inf, -np.inf)
    odd = np.where((error != 0) & is_even, np.nextafter(total, towards), total)
    return odd.astype(np.float32)


class FloatLayer(LinearLayer):
    """FloatLinear: a weight of floats."""

    def node(self) -> tuple[str, dict[str, Array], dict[str, int]]:
        return "FloatLinear", {"weight": pack_float(self.weight)}, {"N": self.weight.shape[1]}

    def check(self, y: Array, x: Array, residual: Array | None = None) -> None:
        """Assert that ``y`` is within the error bound of K roundings per sum."""
        depth = self.weight.shape[0]
        weight = self.weight.astype(np.float64)
        expected = x.astype(np.float64) @ weight
        bound = np.abs(x).astype(np.float64) @ np.abs(weight)
        for term in [self.bias, residual]:
            if term is not None:
                bound += np.abs(term)
        if self.bias is not None:
            expected += self.bias
        if self.activation == RELU:
            expected = np.maximum(expected, 0)
        if residual is not None:
            expected += residual
        assert (np.abs(y - expected) <= (depth + 2) * 2.0**-24 * bound).all()


@dataclass(frozen=True)
class GatedLayer(LinearLayer):
    """SiLU(gate) · other: the halves of the columns of a float weight [K, 2 F]; bias [2 F]."""

    quantizer: PackedQuantizer = GATED["gated float32"]

    def node(self) -> tuple[str, dict[str, Array], dict[str, int]]:
        depth, columns = self.weight.shape
        attributes = {"gated": 0} | self.quantizer.attributes((depth, columns))
        return self.quantizer.operator, self.quantizer.encode(self.weight), attributes

    def plain(self) -> GatedLayer:
        """Return the ungated product, whose columns have equal bits."""
        quantizer = replace(self.quantizer, is_gated=False)
        return replace(self, quantizer=quantizer, activation=NONE)

    def check(self, y: Array, x: Array, residual: Array | None = None) -> None:
        """Compare with SiLU in float64 of the plain product."""
        gate, other = np.split(self.plain().run(x).astype(np.float64), 2, -1)
        expected = gate / (1 + np.exp(-gate)) * other
        np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-30)


def random_layer(
    form: str, depth: int, columns: int, bias: bool = False, activation: int = NONE
) -> Any:  # noqa: ANN401  (a LinearLayer)
    """Return a random layer of one of FORMS: int8 by column, int4 or int8 by block, floats.

    One of GATED gives ``columns`` results of twice as many columns, whatever ``activation`` is.
    """
    gated = form in GATED
    random, width = np.random.default_rng((depth, columns)), columns * (1 + gated)
    weight = random.standard_normal((depth, width), np.float32)
    of_columns = random.standard_normal(width, np.float32) if bias else None
    if gated:
        weight *= np.float32(3 * depth**-0.5)
        return GatedLayer(weight, of_columns, SILU, GATED[form])
    if form in DTYPES:
        return FloatLayer(weight.astype(DTYPES[form]), of_columns, activation)
    if form == "int8":
        codes = random.integers(-128, 128, (depth, columns), np.int8)
        scale = random.uniform(0.001, 0.01, columns).astype(np.float32)
        return QuantizedLayer(codes, of_columns, activation, scale)
    bits, block_size = (int(number) for number in form.removeprefix("int").split("-"))
    return BlockLayer(np.float32(0.05) * weight, of_columns, activation, block_size, bits)
