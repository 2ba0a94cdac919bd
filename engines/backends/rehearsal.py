"""A device made of host memory that runs the GPU code paths on a machine without a GPU.

Enqueued work is deferred until ``synchronize``, and addresses become invalid when freed, so missing
waits and use after free fail here, too. New memory is NaN, and an engine fails if parts of its
caches were never written: attention on CUDA would multiply them by 0. The speed is meaningless.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from ..errors import CapacityError, DeviceError
from ..memory import Array, HostMemory
from .device import Device, DeviceEvent, DeviceGraph

Work = Callable[[], None]

UNWRITTEN = 0xFF  # each byte of new memory; NaN in every type
_ALIGNMENT = 256
_streams: Iterator[int] = count(1)  # 0 is CUDA's default stream


class RehearsalDevice(Device):
    """Host memory, by host address, whose copies, fills and engines run at ``synchronize``."""

    kind = "rehearsal"

    def __init__(self, *, compute_capability: str = "8.9", limit: int | None = None) -> None:
        self._compute_capability = compute_capability
        self._limit = HostMemory().available_bytes() if limit is None else limit
        self._stream = next(_streams)
        self._addresses: list[int] = []  # of allocated blocks, ascending
        self._blocks: dict[int, NDArray[np.uint8]] = {}
        self._queue: deque[Work] = deque()
        self._recorded: list[Work] | None = None  # by the current capture

    @property
    @override
    def name(self) -> str:
        return "rehearsal on the host"

    @property
    @override
    def index(self) -> int:
        return 0

    @property
    @override
    def compute_capability(self) -> str:
        return self._compute_capability

    @property
    def stream(self) -> int:
        """Return a number that is unique among this process's rehearsal devices."""
        return self._stream

    @property
    def is_capturing(self) -> bool:
        """True while enqueued work goes into a graph."""
        return self._recorded is not None

    def enqueue(self, work: Work) -> None:
        """Add ``work`` to the stream, to run at ``synchronize``, or to a graph being captured."""
        if self._recorded is not None:
            self._recorded.append(work)
        else:
            self._queue.append(work)

    def bytes_at(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Return ``nbytes`` from ``address`` without a copy; DeviceError unless allocated."""
        below = bisect_right(self._addresses, address)
        if below:
            first = self._addresses[below - 1]
            block, start = self._blocks[first], address - first
            if start + nbytes <= block.nbytes:
                return block[start : start + nbytes]
        raise DeviceError(self.name, f"{nbytes} bytes at {address:#x} are not allocated")

    def require_written(self, address: int, nbytes: int, item_bytes: int) -> None:
        """Enqueue a check that every item of ``item_bytes`` at ``address`` has been written."""
        unwritten = int.from_bytes(bytes([UNWRITTEN]) * item_bytes)

        def check() -> None:
            items = self.bytes_at(address, nbytes).view(f"u{item_bytes}")
            if count := int((items == unwritten).sum()):
                raise DeviceError(
                    self.name,
                    f"attention would read {count:,} of {items.size:,} items at {address:#x} that "
                    "nobody wrote, and NaN with them; zero the memory of caches",
                )

        self.enqueue(check)

    @override
    def allocate(self, nbytes: int) -> int:
        self._refuse_during_capture("allocate")
        if nbytes > self.memory_info()[0]:
            self._drain()  # some memory may be waiting to be freed
        free, total = self.memory_info()
        if nbytes > free:
            raise CapacityError(
                f"memory of {self.name}",
                f"{nbytes:,} bytes needed at once, {free:,} free of {total:,}; "
                "use a smaller batch or shorter sequences",
            )
        memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT
        block = memory[start : start + nbytes]
        block.fill(UNWRITTEN)
        address = int(memory.ctypes.data) + start
        self._blocks[address] = block
        insort(self._addresses, address)
        return address

    @override
    def free(self, address: int) -> None:
        self._queue.append(_Free(self, address))  # never part of a capture

    @override
    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        self._refuse_during_capture("allocate page-locked memory")
        return np.zeros(nbytes, np.uint8)

    @override
    def copy_to_device(self, address: int, source: Array) -> None:
        assert source.flags.c_contiguous
        flat = source.reshape(-1).view(np.uint8)
        self.enqueue(lambda: np.copyto(self.bytes_at(address, flat.nbytes), flat))

    @override
    def copy_to_host(self, target: Array, address: int) -> None:
        assert target.flags.c_contiguous
        flat = target.reshape(-1).view(np.uint8)
        self.enqueue(lambda: np.copyto(flat, self.bytes_at(address, flat.nbytes)))

    @override
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
        def copy() -> None:
            for run in range(height):
                self._copy(target + run * pitch, source + run * source_pitch, width)

        self.enqueue(copy)

    @override
    def copy_rows(self, target: int, source: int, index: int, *, rows: int, row_bytes: int) -> None:

        def copy() -> None:
            for row, found in enumerate(self.bytes_at(index, 8 * rows).view(np.int64)):
                self._copy(target + row * row_bytes, source + int(found) * row_bytes, row_bytes)

        self.enqueue(copy)

    @override
    def fill(self, address: int, nbytes: int, value: int) -> None:
        self.enqueue(lambda: self.bytes_at(address, nbytes).fill(value))

    @override
    def synchronize(self) -> None:
        self._refuse_during_capture("synchronize")
        self._drain()

    @override
    def event(self) -> DeviceEvent:
        return _QueuedEvent(self)

    @override
    def begin_capture(self) -> None:
        self._refuse_during_capture("begin another capture")
        self._recorded = []

    @override
    def end_capture(self) -> DeviceGraph:
        if self._recorded is None:
            raise DeviceError(self.name, "there is no capture to end; call begin_capture first")
        work, self._recorded = self._recorded, None
        return _RecordedGraph(self, work)

    @override
    def memory_info(self) -> tuple[int, int]:
        used = sum(block.nbytes for block in self._blocks.values())
        return max(0, self._limit - used), self._limit

    @override
    def close(self) -> None:
        self._recorded = None
        self._drain()

    def _drain(self, until: _Mark | None = None) -> None:
        """Run the queued work, up to a mark; after a failure, only free memory."""
        try:
            while self._queue and not (until is not None and until.is_reached):
                self._queue.popleft()()
        except BaseException:
            while self._queue:
                work = self._queue.popleft()
                if isinstance(work, _Free):
                    work()
            raise

    def _copy(self, target: int, source: int, nbytes: int) -> None:
        np.copyto(self.bytes_at(target, nbytes), self.bytes_at(source, nbytes))

    def _remove(self, address: int) -> None:
        del self._blocks[address]
        self._addresses.remove(address)

    def _refuse_during_capture(self, action: str) -> None:
        if self._recorded is not None:
            raise DeviceError(self.name, f"can't {action} during a capture; do it before")


@dataclass
class _Mark:
    """A mark in the queue of work."""

    is_reached: bool = False

    def __call__(self) -> None:
        self.is_reached = True


class _QueuedEvent(DeviceEvent):
    """A mark in the rehearsal's queue."""

    def __init__(self, device: RehearsalDevice) -> None:
        self._device = device
        self._mark = _Mark()

    @override
    def record(self) -> None:
        self._device._refuse_during_capture("record an event")
        self._mark = _Mark()
        self._device.enqueue(self._mark)

    @override
    def wait(self) -> None:
        self._device._refuse_during_capture("wait for an event")
        self._device._drain(self._mark)


@dataclass(frozen=True)
class _Free:
    """Frees the block at ``address``."""

    device: RehearsalDevice
    address: int

    def __call__(self) -> None:
        self.device._remove(self.address)


@dataclass
class _RecordedGraph(DeviceGraph):
    """Work that was enqueued during a capture."""

    device: RehearsalDevice
    work: list[Work] | None

    @override
    def launch(self) -> None:
        if self.work is None:
            raise DeviceError(self.device.name, "the graph was destroyed; capture it again")
        for work in self.work:
            self.device.enqueue(work)

    @override
    def destroy(self) -> None:
        self.work = None
