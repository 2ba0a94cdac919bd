"""Interface to read a checkpoint's tensors, one at a time, from any file format."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from ...engines.memory import Array

StoredType = Literal["float32", "float16", "bfloat16"]

_BLOCK_BYTES = 1 << 24


class CheckpointReader(ABC):
    """The tensors of a checkpoint by canonical name, i.e. without a leading ``model.``.

    Arrays are float32 or float16, as stored; bfloat16 is widened to float32. They may be views of
    a memory-mapped file; don't write to them.
    """

    def __init__(self) -> None:
        self._content_ids: dict[str, str] = {}

    @abstractmethod
    def names(self) -> frozenset[str]:
        """Return the canonical names of all tensors."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor, without reading it."""

    @abstractmethod
    def stored_type(self, name: str) -> StoredType:
        """Return the type of a tensor in its file."""

    @abstractmethod
    def read_rows(self, name: str, start: int, stop: int) -> Array:
        """Return rows ``start`` to ``stop`` (exclusive) of a tensor along its first axis."""

    def read(self, name: str) -> Array:
        """Return a whole tensor."""
        return self.read_rows(name, 0, self.shape(name)[0])

    def content_id(self, name: str) -> str:
        """Return the SHA-256 of a tensor's dtype, shape and values, equal in every file format.

        Reads the tensor once, in blocks, and caches the result.
        """
        if name not in self._content_ids:
            self._content_ids[name] = self._content_id(name)
        return self._content_ids[name]

    def _content_id(self, name: str) -> str:
        digest = hashlib.sha256(f"{self.read_rows(name, 0, 0).dtype} {self.shape(name)}".encode())
        for block in self._blocks(name):
            digest.update(np.ascontiguousarray(block).data)
        return digest.hexdigest()

    def _blocks(self, name: str) -> Iterator[Array]:
        rows, *rest = self.shape(name)
        step = max(1, _BLOCK_BYTES // (4 * math.prod(rest)))
        for start in range(0, rows, step):
            yield self.read_rows(name, start, min(start + step, rows))


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a checkpoint file.

    ``data`` is a view of the mapped file; bfloat16 is stored as its bits, uint16.
    """

    dtype: StoredType
    data: Array


class MappedReader(CheckpointReader):
    """Reads memory-mapped tensors; only bfloat16 is copied."""

    def __init__(self, tensors: Mapping[str, StoredTensor]) -> None:
        super().__init__()
        self._tensors = dict(tensors)

    @override
    def names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    @override
    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].data.shape

    @override
    def stored_type(self, name: str) -> StoredType:
        return self._tensors[name].dtype

    def read_rows(self, name: str, start: int, stop: int) -> Array:
        """Return rows of a tensor: a view of the file, or a new array for bfloat16."""
        tensor = self._tensors[name]
        rows = tensor.data[start:stop]
        return widen_bfloat16(rows) if tensor.dtype == "bfloat16" else rows


def widen_bfloat16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return the float32 values of bfloat16 bits; exact, since bfloat16 is float32's upper half.

    >>> float(widen_bfloat16(np.array([0x3FC0], np.uint16))[0])
    1.5
    """
    return np.left_shift(bits, 16, dtype=np.uint32).view(np.float32)
