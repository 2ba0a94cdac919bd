"""CUDA behind the Device protocol, through NVIDIA's own bindings (``cuda.bindings.runtime``)."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CapacityError, DeviceError, EnvironmentMismatchError, MissingExtraError
from ..memory import Array
from .device import Device, DeviceGraph

try:
    from cuda.bindings import runtime

    from .row_copy import RowCopy
except ImportError as error:
    raise MissingExtraError(
        "a CUDA device",
        "needs cuda.bindings, not installed here; run: pip install 'cuda-bindings>=13.0'",
    ) from error


class CudaDevice(Device):
    """One GPU and one stream of its own, which does not wait for the default stream.

    Every method makes the GPU the calling thread's current one, as libraries that take the
    stream expect, so a device may be used from several threads, one at a time. Raises
    EnvironmentMismatchError if there is no such GPU or no driver for it.
    """

    def __init__(self, index: int = 0) -> None:
        _require_device(index)
        self._index = index
        self._is_capturing = False
        self._row_copy: RowCopy | None = None
        self._unfreed: list[Callable[[], None]] = []  # given up during a capture
        self._freeing = RLock()  # finalizers run in any thread, and within each other
        self._stream = self._call(runtime.cudaStreamCreateWithFlags, runtime.cudaStreamNonBlocking)
        self._is_open = True

    @property
    def name(self) -> str:
        """See Device."""
        properties = self._call(runtime.cudaGetDeviceProperties, self._index)
        return bytes(properties.name).split(b"\0")[0].decode()

    @property
    def index(self) -> int:
        """See Device."""
        return self._index

    @property
    def compute_capability(self) -> str:
        """See Device."""
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
    def stream(self) -> int:
        """See Device."""
        return int(self._stream)

    def allocate(self, nbytes: int) -> int:
        """See Device; cudaMalloc, which aligns to 256 bytes. Not allowed during a capture."""
        self._make_current()
        error, address = runtime.cudaMalloc(max(nbytes, 1))
        if error == runtime.cudaError_t.cudaErrorMemoryAllocation:
            runtime.cudaGetLastError()  # or other libraries would take it for their own
            free, total = self.memory_info()
            raise CapacityError(
                f"memory of {self.name}",
                f"{nbytes:,} bytes needed at once, {free:,} free of {total:,}; "
                "use a smaller batch, shorter sequences or a bundle with smaller weights",
            )
        _check(runtime.cudaMalloc, error)
        return int(address)

    def free(self, address: int) -> None:
        """See Device; waits for the stream, or for the end of a capture that is going on."""
        self._give_up(lambda: self._call(runtime.cudaFree, address))

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """See Device."""
        size = max(nbytes, 1)
        address = self._call(runtime.cudaHostAlloc, size, runtime.cudaHostAllocDefault)
        memory = (ctypes.c_uint8 * size).from_address(int(address))
        weakref.finalize(memory, self._give_up, lambda: self._call(runtime.cudaFreeHost, address))
        # The view keeps ``memory`` alive, as do views of it.
        array: NDArray[np.uint8] = np.frombuffer(memoryview(memory), np.uint8)[:nbytes]
        array[...] = 0
        return array

    def copy_to_device(self, address: int, source: Array) -> None:
        """See Device."""
        assert source.flags.c_contiguous
        kind = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._enqueue(runtime.cudaMemcpyAsync, address, source.ctypes.data, source.nbytes, kind)

    def copy_to_host(self, target: Array, address: int) -> None:
        """See Device."""
        assert target.flags.c_contiguous
        kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._enqueue(runtime.cudaMemcpyAsync, target.ctypes.data, address, target.nbytes, kind)

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
        """See Device."""
        read_pitch = pitch if source_pitch is None else source_pitch
        kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        copy = runtime.cudaMemcpy2DAsync
        self._enqueue(copy, target, pitch, source, read_pitch, width, height, kind)

    def copy_rows(self, target: int, source: int, index: int, *, rows: int, row_bytes: int) -> None:
        """See Device; the first call, which loads the kernel, is not allowed during a capture."""
        self._make_current()
        if self._row_copy is None:
            self._row_copy = RowCopy()
        self._row_copy.launch(self.stream, target, source, index, rows=rows, row_bytes=row_bytes)

    def fill(self, address: int, nbytes: int, value: int) -> None:
        """See Device."""
        self._enqueue(runtime.cudaMemsetAsync, address, value, nbytes)

    def synchronize(self) -> None:
        """See Device."""
        self._enqueue(runtime.cudaStreamSynchronize)

    def begin_capture(self) -> None:
        """See Device; only this thread is kept from calls that a capture forbids."""
        mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        with self._freeing:
            self._is_capturing = True  # before CUDA captures: a finalizer may run in between
        try:
            self._call(runtime.cudaStreamBeginCapture, self._stream, mode)
        except DeviceError:
            self._end_capturing()
            raise

    def end_capture(self) -> DeviceGraph:
        """See Device; the stream is usable again whether or not the capture succeeded."""
        try:
            graph = self._call(runtime.cudaStreamEndCapture, self._stream)
        finally:
            self._end_capturing()
        try:
            executable = self._call(runtime.cudaGraphInstantiate, graph, 0)
        finally:
            self._call(runtime.cudaGraphDestroy, graph)
        return _CudaGraph(self, executable)

    def memory_info(self) -> tuple[int, int]:
        """See Device."""
        free, total = self._call(runtime.cudaMemGetInfo)
        return int(free), int(total)

    def close(self) -> None:
        """See Device."""
        if self._is_open:
            self._is_open = False
            self.synchronize()
            self._call(runtime.cudaStreamDestroy, self._stream)

    def _give_up(self, free: Callable[[], None]) -> None:
        """Free memory when no enqueued work can use it: at once, or after a capture.

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


class _CudaGraph(DeviceGraph):
    """An executable graph; CUDA keeps it until a launch that is under way is done."""

    def __init__(self, device: CudaDevice, executable: Any) -> None:  # noqa: ANN401
        self._device = device
        self._executable = executable

    def launch(self) -> None:
        """See DeviceGraph."""
        self._device._enqueue(runtime.cudaGraphLaunch, self._executable)

    def destroy(self) -> None:
        """See DeviceGraph."""
        self._device._call(runtime.cudaGraphExecDestroy, self._executable)


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
    """CUDA's number of a version as people write it.

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
        runtime.cudaGetLastError()  # or other libraries would take it for their own
        raise DeviceError(f"CUDA call {function.__name__}", f"failed with {_error_text(error)}")


def _error_text(error: runtime.cudaError_t) -> str:
    """``cudaErrorInsufficientDriver (CUDA driver version is insufficient ...)``."""
    _, name = runtime.cudaGetErrorName(error)
    _, text = runtime.cudaGetErrorString(error)
    return f"{name.decode()} ({text.decode()})"
