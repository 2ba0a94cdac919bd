"""The memory bandwidth of this machine, which bounds decode steps at small batches.

A weak probe makes every engine look good. This one reads 1 GiB, far more than any cache, with as
many threads as the engine has, by the faster of two readers: numpy's int32 maximum, which uses the
CPU's widest vectors, and the C library's memcmp, which reads two streams at a time. The machine and
its page sizes decide which one wins.

Memory bandwidth drifts, above all on shared hosts (80 and 50 GB/s were measured a minute apart), so
a comparison takes the best of at least ten passes, interleaved with the measured work. If an
engine's fraction of the bandwidth is above 1.0, the probe is too slow.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import numpy as np
from typing_extensions import override

from ...engines.backends.device import Device, DeviceMemory
from ...engines.errors import CapacityError, UsageError
from ...engines.host.processor import available_cores

PROBE_BYTES = 2**30
PASSES = 10
_HUGE_PAGE = 2**21
_COPIES = 8  # per pass, so that the time to start and to wait is negligible
_RUN_BYTES = 2**20  # length of a row of the strided copy, which is contiguous

Reader = Callable[[int, int], None]


class Probe(ABC):
    """Context manager that measures a bandwidth in passes, interleaved with other work.

    >>> with BandwidthProbe(threads=2) as probe:
    ...     for _ in range(PASSES):
    ...         run_the_engine()
    ...         probe.measure()
    ...     probe.best
    80.9e9
    """

    def __init__(self) -> None:
        self.samples: list[float] = []  # bytes per second of each pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def best(self) -> float:
        """The highest bandwidth of all passes so far, in bytes per second."""
        assert self.samples, "measure() first"
        return max(self.samples)

    def best_of_passes(self) -> float:
        """Run ten passes in a row and return the best of all passes."""
        for _ in range(PASSES):
            self.measure()
        return self.best

    @abstractmethod
    def measure(self) -> float:
        """Run one pass and return its bytes per second."""

    @abstractmethod
    def close(self) -> None:
        """Free the probe's memory."""


class BandwidthProbe(Probe):
    """Reads ``nbytes`` of memory with ``threads`` threads in each pass.

    Each pass first waits ``settle_seconds``: an engine's threads spin for a while after a run, and
    on two cores a pass right after them measured 42 GB/s instead of 83.

    Holds ``nbytes`` until closed. Raises UsageError for less than 64 KiB per thread or no threads,
    CapacityError if the memory can't be allocated.
    """

    def __init__(
        self, threads: int, nbytes: int = PROBE_BYTES, *, settle_seconds: float = 0.0
    ) -> None:
        if threads < 1 or nbytes < threads * 2**16:
            raise UsageError(
                "bandwidth probe",
                f"threads is {threads} and nbytes {nbytes:,}; allowed: 1 thread or more, "
                "65,536 bytes per thread or more",
            )
        super().__init__()
        self.threads = threads
        self._settle_seconds = settle_seconds
        self.memory = _resident_memory(nbytes)
        self._slices = _thread_slices(nbytes, threads)
        self._readers = _readers(self.memory)
        self._executor = ThreadPoolExecutor(threads)

    @override
    def measure(self) -> float:
        time.sleep(self._settle_seconds)
        total = sum(size for _, size in self._slices)
        seconds = min(self._pass_seconds(reader) for reader in self._readers)
        self.samples.append(total / seconds)
        return self.samples[-1]

    @override
    def close(self) -> None:
        self._executor.shutdown()
        self._readers = ()
        self.memory = np.empty(0, np.uint8)

    def _pass_seconds(self, reader: Reader) -> float:
        start = time.perf_counter()
        for future in [self._executor.submit(reader, *part) for part in self._slices]:
            future.result()
        return time.perf_counter() - start


def measure_bandwidth(threads: int) -> float:
    """Return the best of ten passes with ``threads``, in bytes per second."""
    with BandwidthProbe(threads) as probe:
        return probe.best_of_passes()


def _resident_memory(nbytes: int) -> np.ndarray:
    """Allocate equal bytes, uint8 [nbytes], all touched, in huge pages if the system allows."""
    try:
        # private: systems give huge pages to private memory before shared memory
        mapping = mmap.mmap(-1, nbytes + _HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise CapacityError(
            "bandwidth probe", f"can't allocate {nbytes:,} bytes ({error}); free some memory"
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(mapping, np.uint8)
    start = -memory.ctypes.data % _HUGE_PAGE
    memory = memory[start : start + nbytes]
    memory[:] = 1
    return memory


def _thread_slices(nbytes: int, threads: int) -> list[tuple[int, int]]:
    """Return (offset, size) of each thread's part: equal sizes, multiples of 4 KiB."""
    size = nbytes // threads // 4096 * 4096
    return [(thread * size, size) for thread in range(threads)]


def _readers(memory: np.ndarray) -> tuple[Reader, ...]:
    """Return functions that read ``size`` bytes at ``offset`` without holding the GIL."""

    def maximum(offset: int, size: int) -> None:
        memory[offset : offset + size].view(np.int32).max()

    compare = _memcmp()
    if compare is None:
        return (maximum,)
    base = memory.ctypes.data

    def compare_halves(offset: int, size: int) -> None:
        half = size // 2  # the halves are equal, so memcmp reads both to their ends
        differs = compare(base + offset, base + offset + half, half)
        assert differs == 0, "the probe's memory was written to"

    return (maximum, compare_halves)


def _memcmp() -> Callable[[int, int, int], int] | None:
    """Return the C library's memcmp(left, right, size), or None if it can't be loaded."""
    try:
        function = ctypes.CDLL(None).memcmp
    except (OSError, TypeError, AttributeError):  # Windows has no library of the process itself
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    function.restype = ctypes.c_int
    return lambda left, right, size: int(function(left, right, size))


class DeviceBandwidthProbe(Probe):
    """Copies ``nbytes`` from one half of a device buffer to the other in each pass.

    It counts bytes read and bytes written: a copy of 1 GiB in 0.5 ms is 4.3e12 bytes per second.
    Decode steps read far more than they write; the sum is the fair comparison, because the two
    directions share the device's bandwidth. Holds twice ``nbytes`` of device memory until closed;
    ``nbytes`` is rounded down to whole MiB.

    Raises CapacityError if the device has too little memory.
    """

    def __init__(self, device: Device, nbytes: int = PROBE_BYTES) -> None:
        super().__init__()
        assert nbytes >= _RUN_BYTES, nbytes
        self._device = device
        self._nbytes = nbytes // _RUN_BYTES * _RUN_BYTES
        self._memory = DeviceMemory(device).allocate(2 * self._nbytes)
        device.fill(self._memory.address, 2 * self._nbytes, 1)
        self._pass_seconds()  # the first pass also wakes the device up

    @override
    def measure(self) -> float:
        self.samples.append(2 * self._nbytes * _COPIES / self._pass_seconds())
        return self.samples[-1]

    @override
    def close(self) -> None:
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
                source_pitch=_RUN_BYTES,
            )
        self._device.synchronize()
        return time.perf_counter() - start


def open_probe(device: Device | None, threads: int | None = None) -> Probe:
    """Return the probe for engines on ``device``, else on a CPU with ``threads`` or all cores."""
    if device is None:
        return BandwidthProbe(threads or available_cores(), settle_seconds=0.1)
    return DeviceBandwidthProbe(device)
