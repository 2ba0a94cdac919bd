"""Provide a rehearsal device that rejects all misuse and counts all calls."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from skipdec.engines.backends.device import DeviceEvent, DeviceGraph
from skipdec.engines.backends.rehearsal import UNWRITTEN, RehearsalDevice
from skipdec.engines.errors import DeviceError
from skipdec.engines.memory import Array


class HostDevice(RehearsalDevice):
    """Fills freed memory like new memory and never reuses freed addresses.

    ``counts`` has the calls of each method, ``graph_launches``, ``bytes_to_device`` and
    ``bytes_to_host``. ``freed`` are the addresses freed so far.
    """

    def __init__(self, *, compute_capability: str = "8.9", limit: int | None = None) -> None:
        super().__init__(compute_capability=compute_capability, limit=limit)
        self.counts: Counter[str] = Counter()
        self.freed: set[int] = set()
        self.fails = False
        self._graveyard: list[NDArray[np.uint8]] = []  # so that no address comes back

    @property
    def allocated(self) -> frozenset[int]:
        """Return the addresses of all allocated memory."""
        return frozenset(self._blocks)

    @property
    def pending(self) -> int:
        """Return the number of operations that wait for ``synchronize``."""
        return len(self._queue)

    def allocate(self, nbytes: int) -> int:
        self.counts["allocate"] += 1
        return super().allocate(nbytes)

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        self.counts["pinned"] += 1
        return super().pinned(nbytes)

    def copy_to_device(self, address: int, source: Array) -> None:
        self.counts["copy_to_device"] += 1
        self.counts["bytes_to_device"] += source.nbytes
        super().copy_to_device(address, source)

    def copy_to_host(self, target: Array, address: int) -> None:
        self.counts["copy_to_host"] += 1
        self.counts["bytes_to_host"] += target.nbytes
        super().copy_to_host(target, address)

    def synchronize(self) -> None:
        self.counts["synchronize"] += 1
        self.fail_if_asked()
        super().synchronize()

    def fail_if_asked(self) -> None:
        """Raise DeviceError at the first wait after ``fails`` was set, once all work is done."""
        if self.fails:
            self.fails = False
            super().synchronize()
            raise DeviceError("stream", "an illegal memory access was encountered")

    def event(self) -> DeviceEvent:
        return _CountedEvent(self, super().event())

    def end_capture(self) -> DeviceGraph:
        self.counts["captures"] += 1
        return _CountedGraph(self, super().end_capture())

    def _remove(self, address: int) -> None:
        if address not in self._blocks:
            raise DeviceError(self.name, f"{address:#x} is freed twice, or was never allocated")
        block = self._blocks[address]
        super()._remove(address)
        block.fill(UNWRITTEN)
        self._graveyard.append(block)
        self.freed.add(address)


class _CountedEvent(DeviceEvent):
    def __init__(self, device: HostDevice, event: DeviceEvent) -> None:
        self._device = device
        self._event = event

    def record(self) -> None:
        self._device.counts["records"] += 1
        self._event.record()

    def wait(self) -> None:
        self._device.counts["waits"] += 1
        self._device.fail_if_asked()
        self._event.wait()


class _CountedGraph(DeviceGraph):
    def __init__(self, device: HostDevice, graph: DeviceGraph) -> None:
        self._device = device
        self._graph = graph

    def launch(self) -> None:
        self._device.counts["graph_launches"] += 1
        self._graph.launch()

    def destroy(self) -> None:
        self._device.counts["graphs_destroyed"] += 1
        self._graph.destroy()
