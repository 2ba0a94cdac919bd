"""Where tensors lie: on the host, as numpy arrays, or on a device, as addresses.

A backend's ``Memory`` hands out flat buffers and views them as tensors, so that pools and KV
caches need not know where their bytes are.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from .cgroups import memory_limit
from .errors import CapacityError
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
_HELD_AS: Mapping[DType, str] = {"bfloat16": "uint16"}  # what numpy has no type for
WEIGHTS_ALIGNMENT = 4096  # bytes: weights files are memory-mapped in pages


def numpy_dtype(dtype: DType) -> str:
    """The name of numpy's type for ``dtype``; the bits of a bfloat16 are held as a uint16."""
    return _HELD_AS.get(dtype, dtype)


@dataclass(eq=False)
class DeviceBuffer:
    """Flat device memory, ``nbytes`` from ``address`` on; whoever allocated it frees it."""

    address: int
    nbytes: int


@dataclass(frozen=True, eq=False)
class DeviceTensor:
    """A C-contiguous tensor in device memory; holding it keeps its buffer allocated."""

    address: int
    shape: tuple[int, ...]
    dtype: DType
    buffer: DeviceBuffer = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor, from ``address`` on."""
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


class Memory(ABC):
    """Memory that the engines of one backend can be bound to.

    Copies are ordered with the backend's engines: they see what was enqueued before them.
    """

    @abstractmethod
    def allocate(self, nbytes: int) -> Buffer:
        """Allocate ``nbytes``, aligned for the backend's kernels, contents undefined.

        Freed with the last reference. Raises CapacityError if there is no such memory.
        """

    @abstractmethod
    def tensor(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> Tensor:
        """View the beginning of ``buffer`` as a C-contiguous tensor."""

    @abstractmethod
    def copy_positions(self, cache: Tensor, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of one row of [rows, N, T, W] over another's."""

    @abstractmethod
    def copy_between(self, target: CacheRow, source: CacheRow, length: int) -> None:
        """The same from a row of one cache to one of another, whose T may differ."""

    @abstractmethod
    def available_bytes(self) -> int:
        """Bytes that KV caches may take unless the user says otherwise."""


class HostMemory(Memory):
    """numpy arrays, of `numpy_dtype`."""

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Allocate a flat array; its pages become resident when they are first touched."""
        try:
            memory = np.empty(nbytes + _HOST_ALIGNMENT, dtype=np.uint8)
        except MemoryError as error:
            raise CapacityError(
                "memory of this machine",
                f"{nbytes:,} bytes needed at once can't be had; use a smaller batch, shorter "
                "sequences or fewer layers",
            ) from error
        start = -memory.ctypes.data % _HOST_ALIGNMENT
        return memory[start : start + nbytes]

    def tensor(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> Array:
        """See Memory."""
        nbytes = math.prod(shape) * ITEM_BYTES[dtype]
        return cast(Array, buffer)[:nbytes].view(numpy_dtype(dtype)).reshape(shape)

    def copy_positions(self, cache: Tensor, source: int, target: int, length: int) -> None:
        """See Memory."""
        self.copy_between((cache, target), (cache, source), length)

    def copy_between(self, target: CacheRow, source: CacheRow, length: int) -> None:
        """See Memory."""
        (to, to_row), (held, held_row) = target, source
        cast(Array, to)[to_row, :, :length] = cast(Array, held)[held_row, :, :length]

    def available_bytes(self) -> int:
        """Half of what this process leaves of the memory that it may use.

        That is the machine's, or what control groups allow. 16 GiB, of which weights hold 4: 6.
        """
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        allowed = min(machine, memory_limit() or machine)
        return max(0, allowed - anonymous_bytes()) // 2


def anonymous_bytes(status: Path = Path("/proc/self/status")) -> int:
    """RssAnon of this process: memory without mapped files, in bytes; 0 where there is no /proc."""
    lines = status.read_text().splitlines() if status.exists() else []
    sizes = [int(line.split()[1]) for line in lines if line.startswith("RssAnon:")]
    return 1024 * sum(sizes)
