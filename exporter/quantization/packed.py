"""Quantised weights in the layout that skipdec's kernels read.

Codes and scales equal those of ONNX Runtime's quantisers (``plain``). numpy only.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

import ml_dtypes  # noqa: F401  (registers bfloat16 with numpy)
import numpy as np
from typing_extensions import override

from ...engines.host.processor import available_cores
from ...engines.kernels.formats import fits_block_linear
from ...engines.kernels.packing import (
    BLOCK_COLUMNS,
    INT8_DEPTH_MULTIPLE,
    INT8_DEPTH_STEP,
    gated_halves,
    pack_float,
    pack_int4,
    pack_int8,
    pack_int8_blocks,
    unpack_float,
    unpack_int4,
    unpack_int8,
    unpack_int8_blocks,
)
from ...engines.manifest import EngineKind, FloatType, PrecisionSpec
from ...engines.memory import Array
from ..architecture.weights import Parameter
from . import quantize
from .quantize import (
    BlockQuantizer,
    ChannelQuantizer,
    FloatArray,
    WeightQuantizer,
    column_slices,
    finite,
)

T = TypeVar("T")
R = TypeVar("R")
Layout = dict[str, tuple[str, tuple[int, ...]]]


def _in_threads(work: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """Yield ``work(item)`` of each item in order, started at most ``threads`` items ahead."""
    with ThreadPoolExecutor(threads) as pool:
        started: deque[Future[R]] = deque()
        for item in items:
            started.append(pool.submit(work, item))
            if len(started) > threads:
                yield started.popleft().result()
        while started:
            yield started.popleft().result()


@dataclass(frozen=True)
class PackedQuantizer(WeightQuantizer):
    """Produces the tensors of one of skipdec's operators, in the order of its inputs.

    The first axis of each tensor runs along the columns of the weight, so a weight is packed in
    pieces of whole blocks of columns. ``is_gated``: the columns are two halves, gate and other,
    each packed by itself and placed according to ``gated_halves``.
    """

    is_gated: bool = field(default=False, kw_only=True)

    operator: ClassVar[str]
    column_axis: ClassVar[int] = -1  # of the tensors of ``plain``

    @abstractmethod
    def pack(self, weight: Array) -> dict[str, Array]:
        """Quantise and pack some columns of a weight [K, n]; all tensors are new."""

    @abstractmethod
    def unpacked(self, tensors: Mapping[str, Array], shape: tuple[int, int]) -> dict[str, Array]:
        """Return the tensors of ``plain`` for a weight [K, N] that is not gated, or for a half."""

    @property
    @abstractmethod
    def plain(self) -> WeightQuantizer | None:
        """Return ONNX Runtime's quantiser with the same codes; None if its weight is float."""

    def attributes(self, shape: tuple[int, int]) -> dict[str, int]:
        """Return the operator's attributes for a weight [K, N], without its activation."""
        return {"gated": 1} if self.is_gated else {}

    def blocks(self, out_size: int) -> int:
        """Return the number of blocks of columns of a weight [K, ``out_size``]."""
        halves = 2 if self.is_gated else 1
        return -(-out_size // halves // BLOCK_COLUMNS) * halves

    @override
    def fitting(self, parameter: Parameter) -> PackedQuantizer:
        return replace(self, is_gated=parameter.is_gated)

    @override
    def encode(self, weight: Array) -> dict[str, Array]:
        in_size, out_size = weight.shape
        tensors = {
            name: np.empty(shape, dtype)
            for name, (dtype, shape) in self.layout((in_size, out_size)).items()
        }
        if self.is_gated:
            half = out_size // 2
            for held, columns in zip(_halves(tensors), np.split(weight, [half], 1), strict=True):
                self._fill(held, columns)
        else:
            self._fill(tensors, weight)
        return tensors

    def _fill(self, tensors: Mapping[str, Array], weight: Array) -> None:
        """Write the packed ``weight`` to ``tensors``, one piece per thread at a time."""
        ends = dict.fromkeys(tensors, 0)
        pieces = (weight[:, each] for each in column_slices(weight.shape, BLOCK_COLUMNS))
        for packed in _in_threads(self.pack, pieces, available_cores()):
            for name, part in packed.items():
                start, ends[name] = ends[name], ends[name] + len(part)
                tensors[name][start : ends[name]] = part

    def unpack(self, tensors: Mapping[str, Array], shape: tuple[int, int]) -> dict[str, Array]:
        """Return the tensors of ``plain`` for a weight [K, N]; without it, the weight under ""."""
        if not self.is_gated:
            return self.unpacked(tensors, shape)
        in_size, out_size = shape
        gate, other = (self.unpacked(half, (in_size, out_size // 2)) for half in _halves(tensors))
        axis = self.column_axis
        return {name: np.concatenate((gate[name], other[name]), axis) for name in gate}

    @override
    def decode(self, tensors: Mapping[str, Array], shape: tuple[int, int]) -> FloatArray:
        unpacked = self.unpack(tensors, shape)
        if self.plain is None:
            return unpacked[""].astype(np.float32)
        return self.plain.decode(unpacked, shape)


@dataclass(frozen=True)
class PackedChannelQuantizer(PackedQuantizer):
    """int8 with one scale per output channel, for QuantizedLinear."""

    operator = "QuantizedLinear"
    plain = ChannelQuantizer()

    def layout(self, shape: tuple[int, int]) -> Layout:
        """Return int8 codes [blocks, Kp/4, 16, 4], float32 ``scale`` and int32 ``offset`` [N]."""
        in_size, out_size = shape
        depth = -(-in_size // INT8_DEPTH_MULTIPLE) * INT8_DEPTH_MULTIPLE // INT8_DEPTH_STEP
        return {
            "quantized": ("int8", (self.blocks(out_size), depth, BLOCK_COLUMNS, INT8_DEPTH_STEP)),
            "scale": ("float32", (out_size,)),
            "offset": ("int32", (out_size,)),
        }

    @override
    def pack(self, weight: Array) -> dict[str, Array]:
        plain = self.plain.encode(weight)
        packed, offset = pack_int8(plain["quantized"])
        return {"quantized": packed, "scale": plain["scale"], "offset": offset}

    @override
    def unpacked(self, tensors: Mapping[str, Array], shape: tuple[int, int]) -> dict[str, Array]:
        return {
            "quantized": unpack_int8(tensors["quantized"], shape),
            "scale": np.asarray(tensors["scale"]),
        }


@dataclass(frozen=True)
class _Packing:
    """Functions that pack codes and scales of MatMulNBits and unpack those of some columns."""

    pack: Callable[[Array, Array], tuple[Array, Array]]
    unpack: Callable[[Array, Array, int], tuple[Array, Array]]


@dataclass(frozen=True)
class PackedBlockQuantizer(PackedQuantizer):
    """``BlockQuantizer``'s codes and scales, packed for BlockLinear4 or BlockLinear8.

    Scales are bfloat16: as small as float16 but with the range of float32, so weights of any
    magnitude are represented equally well. Codes are computed from the rounded scale, so its eight
    bits only affect the largest element of a block: by less than a fiftieth of a step of int4, and
    at most a fourth of a step of int8.
    ``block_size`` is one of those that `fits_block_linear` allows.
    """

    block_size: int

    bits: ClassVar[int]
    code_type: ClassVar[str]
    packing: ClassVar[_Packing]
    column_axis = 0

    @property
    def plain(self) -> BlockQuantizer:
        """Return the quantiser of MatMulNBits with the same codes."""
        return BlockQuantizer(self.bits, self.block_size, "bfloat16")

    @override
    def attributes(self, shape: tuple[int, int]) -> dict[str, int]:
        return super().attributes(shape) | {"N": shape[1], "block_size": self.block_size}

    def layout(self, shape: tuple[int, int]) -> Layout:
        """Return codes [panels, Kp · bits / 32, 16, 4] and ``scale`` [panels, blocks, 16]."""
        in_size, out_size = shape
        blocks, panels = -(-in_size // self.block_size), self.blocks(out_size)
        depth = blocks * self.block_size * self.bits // 32
        return {
            "quantized": (self.code_type, (panels, depth, BLOCK_COLUMNS, 4)),
            "scale": ("bfloat16", (panels, blocks, BLOCK_COLUMNS)),
        }

    @override
    def pack(self, weight: Array) -> dict[str, Array]:
        plain = self.plain.encode(weight)
        quantized, scale = self.packing.pack(plain["quantized"], plain["scale"])
        return {"quantized": quantized, "scale": scale}

    @override
    def unpacked(self, tensors: Mapping[str, Array], shape: tuple[int, int]) -> dict[str, Array]:
        quantized, scale = self.packing.unpack(tensors["quantized"], tensors["scale"], shape[1])
        return {"quantized": quantized, "scale": scale}


@dataclass(frozen=True)
class PackedInt4Quantizer(PackedBlockQuantizer):
    """int4 for the operator BlockLinear4."""

    operator = "BlockLinear4"
    bits = 4
    code_type = "uint8"
    packing = _Packing(pack_int4, unpack_int4)


@dataclass(frozen=True)
class PackedInt8BlockQuantizer(PackedBlockQuantizer):
    """int8 in blocks for the operator BlockLinear8."""

    operator = "BlockLinear8"
    bits = 8
    code_type = "int8"
    packing = _Packing(pack_int8_blocks, unpack_int8_blocks)


@dataclass(frozen=True)
class FloatQuantizer(PackedQuantizer):
    """Float weights, rounded to ``dtype``, for FloatLinear."""

    dtype: FloatType

    operator = "FloatLinear"
    plain = None

    @override
    def attributes(self, shape: tuple[int, int]) -> dict[str, int]:
        return super().attributes(shape) | {"N": shape[1]}

    def layout(self, shape: tuple[int, int]) -> Layout:
        """Return ``packed`` [blocks, K, 16]."""
        in_size, out_size = shape
        return {"packed": (self.dtype, (self.blocks(out_size), in_size, BLOCK_COLUMNS))}

    @override
    def pack(self, weight: Array) -> dict[str, Array]:
        with np.errstate(over="ignore"):  # `finite` refuses the result
            rounded = weight.astype(self.dtype, copy=False)
        finite(np.abs(rounded).max(axis=0).astype(np.float32))
        return {"packed": pack_float(rounded)}

    @override
    def unpacked(self, tensors: Mapping[str, Array], shape: tuple[int, int]) -> dict[str, Array]:
        return {"": unpack_float(tensors["packed"], shape[1])}


def _halves(tensors: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return views of the gate's part and of the other half's part of each packed tensor."""
    halves = {name: gated_halves(tensor) for name, tensor in tensors.items()}
    return (
        {name: gate for name, (gate, _) in halves.items()},
        {name: other for name, (_, other) in halves.items()},
    )


def weight_quantizer(kind: EngineKind, precision: PrecisionSpec) -> WeightQuantizer | None:
    """Return the quantiser of the products of an engine of ``kind``; None if it has no products.

    Blocks with a size or accuracy that BlockLinear4 and BlockLinear8 don't support run on ONNX
    Runtime's operators.
    """
    match quantize.weight_quantizer(kind, precision):
        case None if kind in quantize.KINDS_WITH_PRODUCTS:
            return FloatQuantizer(precision.dtype)
        case ChannelQuantizer():
            return PackedChannelQuantizer()
        case BlockQuantizer(bits=bits, block_size=size) if fits_block_linear(
            precision, quantize.quantization(kind, precision)
        ):
            return PackedInt4Quantizer(size) if bits == 4 else PackedInt8BlockQuantizer(size)
        case other:
            return other
