"""One accelerator as backends and runtime see it: memory, copies and one stream in order.

``cuda.py`` implements it with CUDA, ``rehearsal.py`` on host memory.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ..manifest import DType, TensorRole
from ..memory import (
    ITEM_BYTES,
    Array,
    Buffer,
    CacheRow,
    DeviceBuffer,
    DeviceTensor,
    Memory,
    Tensor,
)

# Of the memory that is free once engines are loaded; the rest is left to activations and graphs.
_KV_SHARE = 0.8


class DeviceGraph(ABC):
    """Work captured from a stream, to be enqueued again as a whole."""

    @abstractmethod
    def launch(self) -> None:
        """Enqueue the captured work on the stream, on the addresses of its capture."""

    @abstractmethod
    def destroy(self) -> None:
        """Free the graph; it must not be launched afterwards."""


class Device(ABC):
    """A device and its one stream: everything enqueued runs in order; nothing waits unasked.

    Every method raises DeviceError if the driver refuses, for reasons of its own or because of
    earlier work on the stream.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """As the driver calls it, e.g. ``NVIDIA H200``."""

    @property
    @abstractmethod
    def index(self) -> int:
        """Ordinal among the devices of this machine."""

    @property
    @abstractmethod
    def compute_capability(self) -> str:
        """``major.minor``, e.g. ``9.0``."""

    @property
    @abstractmethod
    def stream(self) -> int:
        """Handle of the stream, as CUDA libraries take it."""

    @abstractmethod
    def allocate(self, nbytes: int) -> int:
        """Allocate device memory, aligned to 256 bytes; return its address.

        Raises CapacityError, with what is free, if there is not enough.
        """

    @abstractmethod
    def free(self, address: int) -> None:
        """Free memory of ``allocate`` once the stream's work so far is done.

        Finalizers call it at any time: during a capture, it waits for the capture's end.
        """

    @abstractmethod
    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Allocate page-locked host memory, zeroed, freed with the last reference to it."""

    @abstractmethod
    def copy_to_device(self, address: int, source: Array) -> None:
        """Enqueue a copy from a C-contiguous pinned array, unchanged until it has been done."""

    @abstractmethod
    def copy_to_host(self, target: Array, address: int) -> None:
        """Enqueue a copy into a C-contiguous pinned array, complete after ``synchronize``."""

    @abstractmethod
    def copy_strided(
        self,
        target: int,
        source: int,
        *,
        pitch: int,
        width: int,
        height: int,
        source_pitch: int | None = None,
    ) -> None:
        """Enqueue a copy of ``height`` runs of ``width`` bytes, ``pitch`` bytes apart.

        ``source_pitch``: how far apart they lie in the source, None for as far as in the target.
        """

    @abstractmethod
    def copy_rows(self, target: int, source: int, index: int, *, rows: int, row_bytes: int) -> None:
        """Enqueue a copy of ``rows`` rows: row r of the target is row ``index[r]`` of the source.

        ``index``: the address of int64 [rows], read when the copy runs: a captured one copies what
        the index says at each launch. Rows lie ``row_bytes`` apart in both, which don't overlap.
        """

    @abstractmethod
    def fill(self, address: int, nbytes: int, value: int) -> None:
        """Enqueue setting ``nbytes`` to the byte ``value``."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until everything enqueued has been done."""

    @abstractmethod
    def begin_capture(self) -> None:
        """Record what is enqueued from here on in place of running it.

        Until ``end_capture``, nothing may be allocated and ``synchronize`` is refused: whatever is
        captured has run once before, so that libraries have made their own allocations.
        """

    @abstractmethod
    def end_capture(self) -> DeviceGraph:
        """Return what was recorded since ``begin_capture``; DeviceError if that was broken.

        Either way the stream runs again what is enqueued. What was captured, bindings and the
        memory behind them, must outlive the graph.
        """

    @abstractmethod
    def memory_info(self) -> tuple[int, int]:
        """Bytes that are free and bytes in all."""

    @abstractmethod
    def close(self) -> None:
        """Destroy the stream; idempotent. Memory still allocated is the owners' to free."""


def misplaced(
    tensors: Mapping[TensorRole, Tensor], host_roles: frozenset[TensorRole] = frozenset()
) -> list[str]:
    """Say which tensors lie on the host but belong on a device, or the other way round."""
    return [
        f"{role} lies on the {'device' if role in host_roles else 'host'}; "
        + ("give a numpy array" if role in host_roles else "copy it into the backend's memory")
        for role, tensor in tensors.items()
        if isinstance(tensor, DeviceTensor) == (role in host_roles)
    ]


class DeviceMemory(Memory):
    """Memory of one device, freed when the last tensor or buffer of it goes."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def allocate(self, nbytes: int) -> DeviceBuffer:
        """See Memory. Zeroed: Attention multiplies what a mask hides by 0, and NaN stays NaN."""
        buffer = DeviceBuffer(self.device.allocate(nbytes), nbytes)
        weakref.finalize(buffer, self.device.free, buffer.address)
        self.device.fill(buffer.address, nbytes, 0)
        return buffer

    def tensor(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> DeviceTensor:
        """See Memory."""
        flat = cast(DeviceBuffer, buffer)
        tensor = DeviceTensor(flat.address, shape, dtype, flat)
        assert tensor.nbytes <= flat.nbytes, (shape, dtype, flat.nbytes)
        return tensor

    def empty(self, shape: tuple[int, ...], dtype: DType) -> DeviceTensor:
        """Allocate a tensor of its own, contents undefined."""
        nbytes = int(np.prod(shape)) * ITEM_BYTES[dtype]
        return self.tensor(self.allocate(nbytes), shape, dtype)

    def copy_positions(self, cache: Tensor, source: int, target: int, length: int) -> None:
        """See Memory."""
        self.copy_between((cache, target), (cache, source), length)

    def copy_between(self, target: CacheRow, source: CacheRow, length: int) -> None:
        """See Memory: one strided copy, a run of ``length`` positions a head."""
        (to, to_row), (held, held_row) = target, source
        written, read = cast(DeviceTensor, to), cast(DeviceTensor, held)
        _, num_heads, capacity, width = written.shape
        position_bytes = width * ITEM_BYTES[written.dtype]
        self.device.copy_strided(
            written[to_row : to_row + 1].address,
            read[held_row : held_row + 1].address,
            pitch=capacity * position_bytes,
            width=length * position_bytes,
            height=num_heads,
            source_pitch=read.shape[2] * position_bytes,
        )

    def available_bytes(self) -> int:
        """Four fifths of what is free now."""
        return int(_KV_SHARE * self.device.memory_info()[0])
