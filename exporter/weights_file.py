"""The external data of one ONNX graph, written tensor by tensor."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

ALIGNMENT = 4096  # bytes: external data is memory-mapped in pages
_BLOCK_BYTES = 1 << 24  # a tensor is converted and written this many bytes at a time

Array = NDArray[Any]


@dataclass(frozen=True)
class Extent:
    """Where a tensor lies in its file, in bytes."""

    offset: int
    length: int


@dataclass
class WeightsFile:
    """Writes tensors to aligned offsets of a new file and hashes them on the way.

    A context manager; on a normal exit the file is on disk (fsync) and ``size`` and ``sha256``
    are final. An older file of that name is unlinked, not overwritten: a process may have it
    mapped.
    """

    path: Path
    size: int = 0
    _hash: Any = field(default_factory=hashlib.sha256)

    def __enter__(self) -> Self:
        self.path.unlink(missing_ok=True)
        self._file = self.path.open("xb")
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._file:
            if error is None:
                self._file.flush()
                os.fsync(self._file.fileno())

    @property
    def sha256(self) -> str:
        """SHA-256, in hexadecimal, of what was written so far."""
        return str(self._hash.hexdigest())

    def append(self, array: Array, dtype: DTypeLike) -> Extent:
        """Write ``array`` as ``dtype`` in C order; it may be a view of any strides.

        int4 is packed as ONNX wants it: two elements a byte, the first in the low nibble.
        """
        self._write(bytes(-self.size % ALIGNMENT))
        offset = self.size
        if np.dtype(dtype) == ml_dtypes.int4:
            array, dtype = _packed(array), np.uint8
        for block in _row_blocks(np.atleast_1d(array)):
            stored = np.ascontiguousarray(block, dtype)
            self._write(stored.reshape(-1).view(np.uint8).data)  # bfloat16 has no buffer itself
        return Extent(offset, self.size - offset)

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.size += len(data)


def _packed(array: Array) -> Array:
    """int4 of any shape → uint8 [ceil(elements / 2)]."""
    codes = np.ascontiguousarray(array, np.int8).reshape(-1).view(np.uint8)
    packed = codes[::2] & 15
    packed[: len(codes) // 2] |= codes[1::2] << 4
    return packed


def _row_blocks(array: Array) -> Iterator[Array]:
    rows = array.shape[0]
    step = max(1, _BLOCK_BYTES * rows // max(1, array.nbytes))
    for start in range(0, rows, step):
        yield array[start : start + step]
