"""An engine's parameters, and the checkpoint tensors that each consists of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ...engines.manifest import (
    DRAFT_ENTRY,
    DRAFT_LAYER,
    DRAFT_STATES,
    TRAINED_HEAD,
    EngineKind,
    FloatType,
    PrecisionSpec,
)
from ...engines.memory import Array


class TensorReader(Protocol):
    """The part of CheckpointReader that parameters use."""

    def read(self, name: str) -> Array:
        """Return the tensor ``name`` as stored: float16 or float32, memory-mapped or new."""
        ...


@dataclass(frozen=True)
class Parameter:
    """One parameter of an engine's graph and the checkpoint tensors that it consists of.

    A projection is stored as [out, in] in the checkpoint and as [in, out] in the graph. Several
    sources are packed along ``out``, each ``out_sizes`` wide (empty: equal sizes). A parameter
    without sources consists of ``values``, float32 in C order, or of ones. A norm's parameters stay
    float32 in a float16 engine (``keeps_float32``). ``is_product``: the weight of a product that
    may be quantised. ``is_table``: each token reads one row. ``factors`` (optional) multiply the
    sources, one each, in float32. ``is_gated``: the first half of the product's columns is the gate
    of the second half; the graph computes SiLU(gate) · other from its result.
    """

    name: str
    shape: tuple[int, ...]
    sources: tuple[str, ...]
    transposed: bool = False
    keeps_float32: bool = False
    is_product: bool = False
    is_table: bool = False
    out_sizes: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    factors: tuple[float, ...] = ()
    is_gated: bool = False

    def float_dtype(self, precision: PrecisionSpec, float32_activations: bool) -> FloatType:
        """Return the type of the unquantised parameter in an engine of ``precision``.

        ``float32_activations``: vectors are float32, like the activations to which they are added.
        """
        is_vector = len(self.shape) == 1
        wide = self.keeps_float32 or (is_vector and float32_activations)
        if wide:
            return "float32"
        return (precision.table_dtype if self.is_table else None) or precision.dtype

    @property
    def source_sizes(self) -> tuple[int, ...]:
        """Return the size along ``out`` of each source."""
        count = len(self.sources)
        return self.out_sizes or (self.shape[-1] // max(1, count),) * count

    def source_shape(self, position: int) -> tuple[int, ...]:
        """Return the shape of one of the sources in the checkpoint."""
        in_sizes, out_size = self.shape[:-1], self.source_sizes[position]
        return (out_size, *in_sizes) if self.transposed else (*in_sizes, out_size)

    def load(self, reader: TensorReader) -> Array:
        """Read the parameter, of shape ``shape`` and the widest dtype of its sources.

        The result may be a transposed view and memory-mapped; don't write to it. Only one source is
        read at a time.
        """
        if not self.sources:
            if self.values:
                return np.array(self.values, np.float32).reshape(self.shape)
            return np.ones(self.shape, np.float32)
        if len(self.sources) == 1:
            array = self._read(reader, 0)
            return array.T if self.transposed else array
        packed: Array | None = None  # [out, in] or [out]
        start = 0
        for position in range(len(self.sources)):
            array = self._read(reader, position)
            if packed is None:
                packed = np.empty((self.shape[-1], *array.shape[1:]), array.dtype)
            packed = packed.astype(np.result_type(packed, array), copy=False)
            packed[start : start + len(array)] = array
            start += len(array)
        assert packed is not None
        return packed.T if self.transposed else packed

    def _read(self, reader: TensorReader, position: int) -> Array:
        array = reader.read(self.sources[position])
        if not self.factors:
            return array
        return array.astype(np.float32) * np.float32(self.factors[position])


_OF_DRAFTS = {
    EngineKind.STATES: DRAFT_STATES,
    EngineKind.ENTRY: DRAFT_ENTRY,
    EngineKind.LAYER: DRAFT_LAYER,
    EngineKind.HEAD: TRAINED_HEAD,
}


def engine_name(kind: EngineKind, layer_index: int | None = None, *, is_draft: bool = False) -> str:
    """Return the name of an engine: ``embed``, ``layer_007``, ``head``, ``candidates``.

    ``is_draft``: it belongs to a draft layer.
    """
    if is_draft:
        return _OF_DRAFTS[kind]
    return f"layer_{layer_index:03d}" if kind is EngineKind.LAYER else str(kind)
