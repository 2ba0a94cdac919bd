"""How fast a device moves its own memory: the yardstick of decode steps at small batches."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from ..engines.backends.device import Device, DeviceMemory
from .bandwidth import PASSES, PROBE_BYTES

_COPIES = 8  # a pass: long enough that starting it and waiting for it don't count
_RUN_BYTES = 2**20  # a run of the strided copy, which then is one contiguous piece


class DeviceBandwidthProbe:
    """Copies ``nbytes`` from one half of a device buffer to the other as often as it is asked to.

    Counts the bytes read and the bytes written: a copy of 1 GiB in 0.5 ms is 4.3e12 bytes a
    second. Decode steps read far more than they write; that the two directions share the device's
    bandwidth makes the sum the fair comparison. Holds twice ``nbytes`` of device memory until
    closed; ``nbytes`` is rounded down to whole MiB.

    Raises CapacityError if the device has not got them.
    """

    def __init__(self, device: Device, nbytes: int = PROBE_BYTES) -> None:
        assert nbytes >= _RUN_BYTES, nbytes
        self._device = device
        self._nbytes = nbytes // _RUN_BYTES * _RUN_BYTES
        self._memory = DeviceMemory(device).allocate(2 * self._nbytes)
        device.fill(self._memory.address, 2 * self._nbytes, 1)
        self._pass_seconds()  # the first pass also wakes the device up
        self.samples: list[float] = []  # bytes a second, one a pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def best(self) -> float:
        """The highest bandwidth of all passes so far, bytes a second."""
        assert self.samples, "measure() first"
        return max(self.samples)

    def measure(self) -> float:
        """Wait for the device, run one pass, return its bytes a second."""
        self.samples.append(2 * self._nbytes * _COPIES / self._pass_seconds())
        return self.samples[-1]

    def close(self) -> None:
        """Free the memory."""
        del self._memory

    def _pass_seconds(self) -> float:
        self._device.synchronize()
        start = time.perf_counter()
        for _ in range(_COPIES):
            self._device.copy_strided(
                self._memory.address,
                self._memory.address + self._nbytes,
                pitch=_RUN_BYTES,
                width=_RUN_BYTES,
                height=self._nbytes // _RUN_BYTES,
            )
        self._device.synchronize()
        return time.perf_counter() - start


def measure_device_bandwidth(device: Device, nbytes: int = PROBE_BYTES) -> float:
    """Return the best of ten passes over ``nbytes``, bytes read and written a second."""
    with DeviceBandwidthProbe(device, nbytes) as probe:
        for _ in range(PASSES):
            probe.measure()
        return probe.best
