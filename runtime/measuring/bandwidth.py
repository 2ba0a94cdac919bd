"""The memory bandwidth of this machine, which bounds decode steps at small batches.

A probe that is too weak makes every engine look good. This one reads 1 GiB, far more than any
cache, with as many threads as the engine has, by the strongest of two readers: numpy's int32
maximum, which uses the widest vectors the CPU has, and the C library's memcmp, which follows two
streams at a time. Which one wins depends on the machine and its page sizes.

Memory bandwidth drifts, most of all on shared hosts (80 and 50 GB/s were seen a minute apart), so
a comparison takes the best of at least ten passes that are interleaved with what is measured.
A fraction of the bandwidth above 1.0 says that the probe, not the engine, needs work.
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

from ...engines.backends.device import Device, DeviceMemory
from ...engines.errors import CapacityError, UsageError
from ...engines.host.processor import available_cores

PROBE_BYTES = 2**30
PASSES = 10
_HUGE_PAGE = 2**21
_COPIES = 8  # a pass: long enough that starting it and waiting for it don't count
_RUN_BYTES = 2**20  # a run of the strided copy, which then is one contiguous piece

Reader = Callable[[int, int], None]


class Probe(ABC):
    """A context manager that measures a bandwidth pass by pass, between what it is held against.

    >>> with BandwidthProbe(threads=2) as probe:
    ...     for _ in range(PASSES):
    ...         run_the_engine()
    ...         probe.measure()
    ...     probe.best
    80.9e9
    """

    def __init__(self) -> None:
        self.samples: list[float] = []  # bytes a second, one a pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def best(self) -> float:
        """The highest bandwidth of all passes so far, bytes a second."""
        assert self.samples, "measure() first"
        return max(self.samples)

    def best_of_passes(self) -> float:
        """Run ten passes in a row and return the best of all."""
        for _ in range(PASSES):
            self.measure()
        return self.best

    @abstractmethod
    def measure(self) -> float:
        """Run one pass and return its bytes a second."""

    @abstractmethod
    def close(self) -> None:
        """Free what the probe holds."""


class BandwidthProbe(Probe):
    """Reads ``nbytes`` of memory with ``threads`` threads as often as it is asked to.

    Each pass first waits ``settle_seconds``: an engine's threads spin for a while after a run, and
    on two cores a pass right behind them read 42 GB/s where 83 were to be had.

    Holds ``nbytes`` until closed. Raises UsageError for a size below 64 KiB a thread or no
    threads, CapacityError if the memory can't be had.
    """

    def __init__(
        self, threads: int, nbytes: int = PROBE_BYTES, *, settle_seconds: float = 0.0
    ) -> None:
        if threads < 1 or nbytes < threads * 2**16:
            raise UsageError(
                "bandwidth probe",
                f"threads is {threads} and nbytes {nbytes:,}; allowed: 1 thread or more, "
                "65,536 bytes a thread or more",
            )
        super().__init__()
        self.threads = threads
        self._settle_seconds = settle_seconds
        self._memory = _resident_memory(nbytes)
        self._slices = _thread_slices(nbytes, threads)
        self._readers = _readers(self._memory)
        self._executor = ThreadPoolExecutor(threads)

    def measure(self) -> float:
        """Read all the memory once with each reader; return the faster one's bytes a second."""
        time.sleep(self._settle_seconds)
        total = sum(size for _, size in self._slices)
        seconds = min(self._pass_seconds(reader) for reader in self._readers)
        self.samples.append(total / seconds)
        return self.samples[-1]

    def close(self) -> None:
        """Stop the threads and free the memory."""
        self._executor.shutdown()
        self._readers = ()
        self._memory = np.empty(0, np.uint8)

    def _pass_seconds(self, reader: Reader) -> float:
        start = time.perf_counter()
        for future in [self._executor.submit(reader, *part) for part in self._slices]:
            future.result()
        return time.perf_counter() - start


def measure_bandwidth(threads: int, nbytes: int = PROBE_BYTES) -> float:
    """Return the best of ten passes over ``nbytes`` with ``threads`` threads, bytes a second."""
    with BandwidthProbe(threads, nbytes) as probe:
        return probe.best_of_passes()


def _resident_memory(nbytes: int) -> np.ndarray:
    """Equal bytes in fresh memory, uint8 [nbytes]: in huge pages where allowed, all touched."""
    try:
        # Private: systems give huge pages to that before they give them to memory that is shared.
        mapping = mmap.mmap(-1, nbytes + _HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise CapacityError(
            "bandwidth probe", f"can't get {nbytes:,} bytes ({error}); free some memory"
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(mapping, np.uint8)
    start = -memory.ctypes.data % _HUGE_PAGE
    memory = memory[start : start + nbytes]
    memory[:] = 1
    return memory


def _thread_slices(nbytes: int, threads: int) -> list[tuple[int, int]]:
    """(offset, size) of each thread's part: equal sizes, multiples of 4 KiB."""
    size = nbytes // threads // 4096 * 4096
    return [(thread * size, size) for thread in range(threads)]


def _readers(memory: np.ndarray) -> tuple[Reader, ...]:
    """Functions that read ``size`` bytes at ``offset`` without holding Python's lock."""

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
    """The C library's memcmp(left, right, size), or None where it can't be loaded."""
    try:
        function = ctypes.CDLL(None).memcmp
    except (OSError, TypeError, AttributeError):  # Windows has no library of the process itself
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    function.restype = ctypes.c_int

    def memcmp(left: int, right: int, size: int) -> int:
        return int(function(left, right, size))

    return memcmp


class DeviceBandwidthProbe(Probe):
    """Copies ``nbytes`` from one half of a device buffer to the other as often as it is asked to.

    Counts the bytes read and the bytes written: a copy of 1 GiB in 0.5 ms is 4.3e12 bytes a
    second. Decode steps read far more than they write; that the two directions share the device's
    bandwidth makes the sum the fair comparison. Holds twice ``nbytes`` of device memory until
    closed; ``nbytes`` is rounded down to whole MiB.

    Raises CapacityError if the device has not got them.
    """

    def __init__(self, device: Device, nbytes: int = PROBE_BYTES) -> None:
        super().__init__()
        assert nbytes >= _RUN_BYTES, nbytes
        self._device = device
        self._nbytes = nbytes // _RUN_BYTES * _RUN_BYTES
        self._memory = DeviceMemory(device).allocate(2 * self._nbytes)
        device.fill(self._memory.address, 2 * self._nbytes, 1)
        self._pass_seconds()  # the first pass also wakes the device up

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


def open_probe(device: Device | None, threads: int | None = None) -> Probe:
    """The yardstick of where engines run; ``threads``: of theirs on a CPU, None for all cores."""
    if device is None:
        return BandwidthProbe(threads or available_cores(), settle_seconds=0.1)
    return DeviceBandwidthProbe(device)


def measure_device_bandwidth(device: Device, nbytes: int = PROBE_BYTES) -> float:
    """Return the best of ten passes over ``nbytes``, bytes read and written a second."""
    with DeviceBandwidthProbe(device, nbytes) as probe:
        return probe.best_of_passes()
