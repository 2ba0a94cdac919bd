"""The Device protocol on CUDA, through NVIDIA's own bindings (``cuda.bindings.runtime``)."""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from ..errors import CapacityError, DeviceError, EnvironmentMismatchError, MissingExtraError
from ..memory import Array
from .device import Device, DeviceEvent, DeviceGraph

try:
    from cuda.bindings import driver, runtime
except ImportError as error:
    raise MissingExtraError(
        "a CUDA device",
        "needs cuda.bindings, not installed here; run: pip install 'cuda-bindings>=13.0'",
    ) from error


PTX = Path(__file__).with_name("row_copy.ptx").read_bytes()  # skipdec's only CUDA kernel
_THREADS = 256  # per block; a block copies one row


class CudaDevice(Device):
    """One GPU and a stream of its own, which does not wait for the default stream.

    Every method makes the GPU the calling thread's current one, as libraries that take the stream
    expect, so several threads may use a device, one at a time. Raises EnvironmentMismatchError if
    the GPU or its driver is missing.
    """

    kind = "cuda"

    def __init__(self, index: int = 0) -> None:
        _require_device(index)
        self._index = index
        self._is_capturing = False
        self._row_copy: RowCopy | None = None
        self._unfreed: list[Callable[[], None]] = []  # released during a capture
        self._freeing = RLock()  # finalizers run in any thread, and may nest
        self._stream = self._call(runtime.cudaStreamCreateWithFlags, runtime.cudaStreamNonBlocking)
        self._is_open = True

    @property
    @override
    def name(self) -> str:
        properties = self._call(runtime.cudaGetDeviceProperties, self._index)
        return bytes(properties.name).split(b"\0")[0].decode()

    @property
    @override
    def index(self) -> int:
        return self._index

    @property
    @override
    def compute_capability(self) -> str:
        attributes = runtime.cudaDeviceAttr
        major, minor = (
            self._call(runtime.cudaDeviceGetAttribute, attribute, self._index)
            for attribute in (
                attributes.cudaDevAttrComputeCapabilityMajor,
                attributes.cudaDevAttrComputeCapabilityMinor,
            )
        )
        return f"{major}.{minor}"

    @property
    @override
    def stream(self) -> int:
        return int(self._stream)

    def allocate(self, nbytes: int) -> int:
        """Allocate by cudaMalloc, aligned to 256 bytes; not allowed during a capture."""
        self._make_current()
        error, address = runtime.cudaMalloc(max(nbytes, 1))
        if error == runtime.cudaError_t.cudaErrorMemoryAllocation:
            runtime.cudaGetLastError()  # clears the error, which other libraries would see
            free, total = self.memory_info()
            raise CapacityError(
                f"memory of {self.name}",
                f"{nbytes:,} bytes needed at once, {free:,} free of {total:,}; "
                "use a smaller batch, shorter sequences or a bundle with smaller weights",
            )
        _check(runtime.cudaMalloc, error)
        return int(address)

    def free(self, address: int) -> None:
        """Free the memory after synchronising, or at the end of a running capture."""
        self._give_up(lambda: self._call(runtime.cudaFree, address))

    @override
    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        size = max(nbytes, 1)
        address = self._call(runtime.cudaHostAlloc, size, runtime.cudaHostAllocDefault)
        memory = (ctypes.c_uint8 * size).from_address(int(address))
        weakref.finalize(memory, self._give_up, lambda: self._call(runtime.cudaFreeHost, address))
        # The view keeps ``memory`` alive, as do views of it.
        array: NDArray[np.uint8] = np.frombuffer(memoryview(memory), np.uint8)[:nbytes]
        array[...] = 0
        return array

    @override
    def copy_to_device(self, address: int, source: Array) -> None:
        assert source.flags.c_contiguous
        kind = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._enqueue(runtime.cudaMemcpyAsync, address, source.ctypes.data, source.nbytes, kind)

    @override
    def copy_to_host(self, target: Array, address: int) -> None:
        assert target.flags.c_contiguous
        kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._enqueue(runtime.cudaMemcpyAsync, target.ctypes.data, address, target.nbytes, kind)

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
        kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        if width == pitch == source_pitch:  # a strided copy reaches only 0.4 of an H200's bandwidth
            self._enqueue(runtime.cudaMemcpyAsync, target, source, width * height, kind)
            return
        copy = runtime.cudaMemcpy2DAsync
        self._enqueue(copy, target, pitch, source, source_pitch, width, height, kind)

    def copy_rows(self, target: int, source: int, index: int, *, rows: int, row_bytes: int) -> None:
        """Copy rows by a kernel; its first launch, which loads it, must precede any capture."""
        self._make_current()
        if self._row_copy is None:
            self._row_copy = RowCopy()
        self._row_copy.launch(self.stream, target, source, index, rows=rows, row_bytes=row_bytes)

    @override
    def fill(self, address: int, nbytes: int, value: int) -> None:
        self._enqueue(runtime.cudaMemsetAsync, address, value, nbytes)

    @override
    def synchronize(self) -> None:
        self._enqueue(runtime.cudaStreamSynchronize)

    @override
    def event(self) -> DeviceEvent:
        flags = runtime.cudaEventDisableTiming
        return _CudaEvent(self, self._call(runtime.cudaEventCreateWithFlags, flags))

    def begin_capture(self) -> None:
        """Begin a capture in thread-local mode: other threads may still make any call."""
        mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        with self._freeing:
            self._is_capturing = True  # before CUDA captures: a finalizer may run in between
        try:
            self._call(runtime.cudaStreamBeginCapture, self._stream, mode)
        except DeviceError:
            self._end_capturing()
            raise

    def end_capture(self) -> DeviceGraph:
        """Return the graph; the stream is usable again even if the capture failed."""
        try:
            graph = self._call(runtime.cudaStreamEndCapture, self._stream)
        finally:
            self._end_capturing()
        try:
            executable = self._call(runtime.cudaGraphInstantiate, graph, 0)
        finally:
            self._call(runtime.cudaGraphDestroy, graph)
        return _CudaGraph(self, executable)

    @override
    def memory_info(self) -> tuple[int, int]:
        free, total = self._call(runtime.cudaMemGetInfo)
        return int(free), int(total)

    @override
    def close(self) -> None:
        if self._is_open:
            if self._is_capturing:
                with contextlib.suppress(DeviceError):  # of a capture that had failed
                    self.end_capture().destroy()
            self._is_open = False
            self.synchronize()
            self._call(runtime.cudaStreamDestroy, self._stream)

    def _give_up(self, free: Callable[[], None]) -> None:
        """Free memory once no enqueued work can use it: now, or at the end of a capture.

        Finalizers call this whenever the garbage collector runs, but waiting and freeing would
        break a capture.
        """
        with self._freeing:
            self._unfreed.append(free)
            if not self._is_capturing:
                self._free_given_up()

    def _end_capturing(self) -> None:
        with self._freeing:
            self._is_capturing = False
            self._free_given_up()

    def _free_given_up(self) -> None:
        if self._unfreed and self._is_open:
            self.synchronize()
        while self._unfreed:
            self._unfreed.pop()()

    def _enqueue(self, function: Callable[..., Any], *arguments: Any) -> None:  # noqa: ANN401
        """Call a function of the runtime that takes the stream last."""
        self._call(function, *arguments, self._stream)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401
        """Call a function of the runtime with this GPU as the current one; return its value."""
        self._make_current()
        return _call(function, *arguments)

    def _make_current(self) -> None:
        _call(runtime.cudaSetDevice, self._index)


class _CudaEvent(DeviceEvent):
    """An event of the CUDA runtime, destroyed with the last reference to it."""

    def __init__(self, device: CudaDevice, handle: Any) -> None:  # noqa: ANN401
        self._device = device
        self._handle = handle
        weakref.finalize(self, _call, runtime.cudaEventDestroy, handle)

    @override
    def record(self) -> None:
        self._device._enqueue(runtime.cudaEventRecord, self._handle)

    @override
    def wait(self) -> None:
        self._device._call(runtime.cudaEventSynchronize, self._handle)


@dataclass(frozen=True)
class _CudaGraph(DeviceGraph):
    """An executable graph; CUDA keeps it until its last launch has finished."""

    device: CudaDevice
    executable: Any

    @override
    def launch(self) -> None:
        self.device._enqueue(runtime.cudaGraphLaunch, self.executable)

    @override
    def destroy(self) -> None:
        self.device._call(runtime.cudaGraphExecDestroy, self.executable)


def _require_device(index: int) -> None:
    error, count = runtime.cudaGetDeviceCount()
    _, driver = runtime.cudaDriverGetVersion()
    _, wanted = runtime.cudaRuntimeGetVersion()
    needed = f"needed: an NVIDIA GPU and a driver for CUDA {wanted // 1000}.0 or newer"
    remedy = "use device='cpu', or a machine with a GPU"
    if error != runtime.cudaError_t.cudaSuccess:
        raise EnvironmentMismatchError(
            f"device cuda:{index}",
            f"the driver says {_error_text(error)}; it supports CUDA {_version(driver)}; "
            f"{needed}; {remedy}",
        )
    if not 0 <= index < count:
        raise EnvironmentMismatchError(
            f"device cuda:{index}",
            f"this machine has {count} CUDA devices, counted from 0; {remedy}",
        )


def _version(number: int) -> str:
    """Return CUDA's version number as readable text.

    >>> _version(13020), _version(0)
    ('13.2', 'none')
    """
    return f"{number // 1000}.{number % 1000 // 10}" if number else "none"


def _call(function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401
    """Call a function of the CUDA runtime; return its value, a tuple of several, or None."""
    error, *values = function(*arguments)
    _check(function, error)
    return values[0] if len(values) == 1 else tuple(values) or None


def _check(function: Callable[..., Any], error: runtime.cudaError_t) -> None:
    if error != runtime.cudaError_t.cudaSuccess:
        runtime.cudaGetLastError()  # clears the error, which other libraries would see
        raise DeviceError(f"CUDA call {function.__name__}", f"failed with {_error_text(error)}")


def _error_text(error: runtime.cudaError_t) -> str:
    """Return e.g. ``cudaErrorInsufficientDriver (CUDA driver version is insufficient ...)``."""
    _, name = runtime.cudaGetErrorName(error)
    _, text = runtime.cudaGetErrorString(error)
    return f"{name.decode()} ({text.decode()})"


class RowCopy:
    """A kernel that gathers rows by an index in device memory, for the thread's current GPU.

    CUDA's own copies take addresses when they are enqueued, so a captured copy would always read
    the same rows. Loading is not allowed during a capture; DeviceError if the driver rejects it.
    """

    def __init__(self) -> None:
        module = _call_driver(driver.cuModuleLoadData, PTX + b"\0")
        self._kernel = _call_driver(driver.cuModuleGetFunction, module, b"copy_rows")

    def launch(
        self, stream: int, target: int, source: int, index: int, *, rows: int, row_bytes: int
    ) -> None:
        """Enqueue on ``stream`` what `Device.copy_rows` describes."""
        arguments = (
            (target, source, index, row_bytes),
            (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong),
        )
        grid, block = (rows, 1, 1), (_THREADS, 1, 1)
        _call_driver(driver.cuLaunchKernel, self._kernel, *grid, *block, 0, stream, arguments, 0)


def _call_driver(function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401
    """Call a function of the CUDA driver and return its value, if any."""
    error, *values = function(*arguments)
    if error != driver.CUresult.CUDA_SUCCESS:
        _, name = driver.cuGetErrorName(error)
        raise DeviceError(f"CUDA call {function.__name__}", f"failed with {name.decode()}")
    return values[0] if values else None
