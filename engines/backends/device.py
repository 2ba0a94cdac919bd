"""Interface to an accelerator: memory, copies and one stream on which work runs in order."""

from __future__ import annotations

import contextlib
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from ..errors import DeviceError
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

# Share of the memory free after loading; the rest is for activations and graphs.
_KV_SHARE = 0.8


class DeviceGraph(ABC):
    """Work captured from a stream, which can be enqueued again as a whole."""

    @abstractmethod
    def launch(self) -> None:
        """Enqueue the captured work on the stream; it uses the addresses from the capture."""

    @abstractmethod
    def destroy(self) -> None:
        """Free the graph, which must not be launched afterwards."""


class DeviceEvent(ABC):
    """A mark on the stream, which the host can wait for while later work goes on."""

    @abstractmethod
    def record(self) -> None:
        """Mark the work enqueued so far; an earlier mark is forgotten. Not during a capture."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until the marked work has finished."""


class Device(ABC):
    """A device with one stream: enqueued work runs in order, asynchronously.

    ``kind`` is the name by which options choose it, without an index: cuda or rehearsal. Every
    method raises DeviceError if the driver fails, also because of earlier work.
    """

    kind: ClassVar[str]

    @property
    @abstractmethod
    def name(self) -> str:
        """Return the driver's name for it, e.g. ``NVIDIA H200``."""

    @property
    @abstractmethod
    def index(self) -> int:
        """Return the ordinal among this machine's devices."""

    @property
    @abstractmethod
    def compute_capability(self) -> str:
        """Return ``major.minor``, e.g. ``9.0``."""

    @property
    @abstractmethod
    def stream(self) -> int:
        """Return the handle of the stream for CUDA libraries."""

    @abstractmethod
    def allocate(self, nbytes: int) -> int:
        """Return the address of new memory, aligned to 256 bytes. Raises CapacityError."""

    @abstractmethod
    def free(self, address: int) -> None:
        """Free memory from ``allocate`` once the work enqueued so far has finished.

        Finalizers call it at any time; during a capture, freeing waits for the capture's end.
        """

    @abstractmethod
    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Allocate page-locked host memory, zeroed, freed with the last reference to it."""

    @abstractmethod
    def copy_to_device(self, address: int, source: Array) -> None:
        """Enqueue a copy from a C-contiguous pinned array; don't change the array before it ran."""

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
        source_pitch: int,
    ) -> None:
        """Enqueue a copy of ``height`` runs of ``width`` bytes.

        They are ``source_pitch`` bytes apart in the source, and ``pitch`` in the target.
        """

    @abstractmethod
    def copy_rows(self, target: int, source: int, index: int, *, rows: int, row_bytes: int) -> None:
        """Enqueue a copy of ``rows`` rows: row r of the target is row ``index[r]`` of the source.

        ``index``: address of int64 [rows], read when the copy runs, so a captured copy reads it at
        each launch. Rows are ``row_bytes`` apart in both buffers, which must not overlap.
        """

    @abstractmethod
    def fill(self, address: int, nbytes: int, value: int) -> None:
        """Enqueue setting ``nbytes`` to the byte ``value``."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all enqueued work has finished."""

    @abstractmethod
    def event(self) -> DeviceEvent:
        """Return a new event, which must be recorded before anyone waits for it."""

    @abstractmethod
    def begin_capture(self) -> None:
        """Start recording enqueued work instead of running it.

        Until ``end_capture``, nothing may be allocated and ``synchronize`` is refused. Captured
        work must have run once before, so that libraries have made their allocations.
        """

    @abstractmethod
    def end_capture(self) -> DeviceGraph:
        """Return what was recorded since ``begin_capture``. Raises DeviceError if that failed.

        In either case the stream runs enqueued work again. Bindings in the capture and their memory
        must outlive the graph.
        """

    def capture(self, enqueue: Callable[[], None]) -> DeviceGraph:
        """Return what ``enqueue`` enqueues as a graph; the capture ends whatever it raises."""
        self.begin_capture()
        try:
            enqueue()
        except BaseException:
            with contextlib.suppress(DeviceError):  # of the broken capture; the cause is raised
                self.end_capture().destroy()
            raise
        return self.end_capture()

    @abstractmethod
    def memory_info(self) -> tuple[int, int]:
        """Return the free and the total bytes."""

    @abstractmethod
    def close(self) -> None:
        """Destroy the stream; idempotent. The owners of allocated memory still have to free it."""


def misplaced(
    tensors: Mapping[TensorRole, Tensor], host_roles: frozenset[TensorRole] = frozenset()
) -> list[str]:
    """Return one text per tensor that is on the host but belongs on a device, or vice versa."""
    return [
        f"{role} is on the {'device' if role in host_roles else 'host'}; "
        + ("pass a numpy array" if role in host_roles else "copy it into the backend's memory")
        for role, tensor in tensors.items()
        if isinstance(tensor, DeviceTensor) == (role in host_roles)
    ]


class DeviceMemory(Memory):
    """Memory of one device, freed with the last tensor or buffer that uses it."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def allocate(self, nbytes: int) -> DeviceBuffer:
        """Allocate zeroed memory: Attention multiplies masked values by 0, and NaN stays NaN."""
        buffer = DeviceBuffer(self.device.allocate(nbytes), nbytes)
        weakref.finalize(buffer, self.device.free, buffer.address)
        self.device.fill(buffer.address, nbytes, 0)
        return buffer

    @override
    def tensor(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> DeviceTensor:
        flat = cast(DeviceBuffer, buffer)
        tensor = DeviceTensor(flat.address, shape, dtype, flat)
        assert tensor.nbytes <= flat.nbytes, (shape, dtype, flat.nbytes)
        return tensor

    def empty(self, shape: tuple[int, ...], dtype: DType) -> DeviceTensor:
        """Allocate a tensor with a buffer of its own, contents undefined."""
        nbytes = int(np.prod(shape)) * ITEM_BYTES[dtype]
        return self.tensor(self.allocate(nbytes), shape, dtype)

    def copy_between(self, target: CacheRow, source: CacheRow, length: int) -> None:
        """Copy ``length`` positions of each head by one strided copy."""
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
        """Return four fifths of the memory that is free now."""
        return int(_KV_SHARE * self.device.memory_info()[0])
