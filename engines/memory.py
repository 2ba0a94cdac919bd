"""Memory for tensors: numpy arrays on the host, addresses on a device."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from .errors import CapacityError
from .host.processor import available_memory
from .manifest import DType

Array = NDArray[Any]

ITEM_BYTES: Mapping[str, int] = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "uint8": 1,
    "int8": 1,
    "bool": 1,
}

_HOST_ALIGNMENT = 64  # a cache line
_HELD_AS: Mapping[DType, str] = {"bfloat16": "uint16"}  # dtypes that numpy lacks
WEIGHTS_ALIGNMENT = 4096  # bytes; weights files are memory-mapped in pages


def numpy_dtype(dtype: DType) -> str:
    """Return the name of numpy's type for ``dtype``; a bfloat16's bits are held as a uint16."""
    return _HELD_AS.get(dtype, dtype)


@dataclass(eq=False)
class DeviceBuffer:
    """Flat device memory: ``nbytes`` from ``address``. Its allocator frees it."""

    address: int
    nbytes: int


@dataclass(frozen=True, eq=False)
class DeviceTensor:
    """A C-contiguous tensor in device memory; it keeps its buffer allocated."""

    address: int
    shape: tuple[int, ...]
    dtype: DType
    buffer: DeviceBuffer = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Return the size of the tensor in bytes."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    def __getitem__(self, rows: slice) -> DeviceTensor:
        """Return rows ``start:stop`` of the first axis, without a copy."""
        start, stop, step = rows.indices(self.shape[0])
        assert step == 1
        row_bytes = self.nbytes // self.shape[0]
        return replace(
            self,
            address=self.address + start * row_bytes,
            shape=(max(0, stop - start), *self.shape[1:]),
        )


Buffer = NDArray[np.uint8] | DeviceBuffer
Tensor = Array | DeviceTensor
CacheRow = tuple[Tensor, int]
"""A cache [rows, N, T, W] and one of its rows."""


def address_of(memory: Buffer | Tensor) -> int:
    """Return where a buffer, or a tensor, begins."""
    if isinstance(memory, np.ndarray):
        return int(memory.__array_interface__["data"][0])
    return memory.address


class Memory(ABC):
    """Memory that the engines of one backend can be bound to: flat buffers, viewed as tensors.

    Copies are ordered with the backend's engines and see the results of all earlier calls.
    """

    @abstractmethod
    def allocate(self, nbytes: int) -> Buffer:
        """Allocate ``nbytes``, aligned for the backend's kernels, with undefined contents.

        Freed with the last reference. Raises CapacityError if the memory is not available.
        """

    @abstractmethod
    def tensor(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> Tensor:
        """View the start of ``buffer`` as a C-contiguous tensor."""

    @abstractmethod
    def copy_between(self, target: CacheRow, source: CacheRow, length: int) -> None:
        """Copy the first ``length`` positions between rows of two caches, whose T may differ."""

    @abstractmethod
    def available_bytes(self) -> int:
        """Return the number of bytes that KV caches may use unless the user sets a limit."""


class HostMemory(Memory):
    """Host memory as numpy arrays of `numpy_dtype`."""

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Allocate a flat array; its pages become resident when they are first touched."""
        try:
            memory = np.empty(nbytes + _HOST_ALIGNMENT, dtype=np.uint8)
        except MemoryError as error:
            raise CapacityError(
                "memory of this machine",
                f"{nbytes:,} bytes could not be allocated; use a smaller batch, shorter "
                "sequences or fewer layers",
            ) from error
        start = -memory.ctypes.data % _HOST_ALIGNMENT
        return memory[start : start + nbytes]

    @override
    def tensor(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> Array:
        nbytes = math.prod(shape) * ITEM_BYTES[dtype]
        return cast(Array, buffer)[:nbytes].view(numpy_dtype(dtype)).reshape(shape)

    @override
    def copy_between(self, target: CacheRow, source: CacheRow, length: int) -> None:
        (to, to_row), (held, held_row) = target, source
        cast(Array, to)[to_row, :, :length] = cast(Array, held)[held_row, :, :length]

    def available_bytes(self) -> int:
        """Return half of the memory that this process may still use: of 12 GiB, 6 GiB."""
        return available_memory() // 2


def anonymous_bytes(status: Path = Path("/proc/self/status")) -> int:
    """Return this process's anonymous memory (RssAnon) in bytes; 0 without /proc."""
    lines = status.read_text().splitlines() if status.exists() else []
    sizes = [int(line.split()[1]) for line in lines if line.startswith("RssAnon:")]
    return 1024 * sum(sizes)
