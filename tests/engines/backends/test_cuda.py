"""Test what needs no GPU of the CUDA device, and its protocol where there is a GPU."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from skipdec.engines.backends.device import DeviceMemory
from skipdec.engines.errors import CapacityError, DeviceError, EnvironmentMismatchError

runtime = pytest.importorskip("cuda.bindings.runtime", reason="cuda-bindings is not installed")

from skipdec.engines.backends import cuda  # noqa: E402  (only where its library is)

if TYPE_CHECKING:
    from skipdec.engines.backends.cuda import CudaDevice


def runtime_names() -> set[str]:
    """Return all ``runtime.X`` and ``runtime.X.Y`` that cuda.py names, as dotted paths."""
    names = set()
    for node in ast.walk(ast.parse(Path(cuda.__file__).read_text())):
        path = []
        while isinstance(node, ast.Attribute):
            path.insert(0, node.attr)
            node = node.value
        if path and isinstance(node, ast.Name) and node.id == "runtime":
            names.add(".".join(path))
    return names


def test_every_name_of_the_cuda_runtime_exists() -> None:
    names = runtime_names()
    assert {"cudaMemcpy2DAsync", "cudaError_t.cudaSuccess"} <= names  # the search finds names
    for name in names:
        place: Any = import_module("cuda.bindings.runtime")
        for part in name.split("."):
            assert hasattr(place, part), f"runtime.{name}"
            place = getattr(place, part)


def test_a_machine_without_a_gpu_gets_both_reasons() -> None:
    if runtime.cudaGetDeviceCount()[0] == runtime.cudaError_t.cudaSuccess:
        pytest.skip("this machine has a GPU")
    with pytest.raises(EnvironmentMismatchError, match=r"cuda:1 \| the driver says cudaError.*"):
        cuda.CudaDevice(1)


class FakeRuntime(SimpleNamespace):
    """A CUDA runtime that records calls; only those in ``failing`` fail."""

    def __init__(self) -> None:
        super().__init__(calls=[], failing={})

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        original = getattr(runtime, name)
        if not callable(original) or isinstance(original, type):
            return original

        def call(*arguments: Any) -> tuple[Any, ...]:  # noqa: ANN401
            self.calls.append(name)
            values = {
                "cudaGetDeviceCount": (2,),
                "cudaMemGetInfo": (100, 1000),
                "cudaGetDeviceProperties": (SimpleNamespace(name=b"NVIDIA H200\0\0"),),
                "cudaDeviceGetAttribute": (9,),
                "cudaGetErrorName": (b"cudaErrorUnknown",),
                "cudaGetErrorString": (b"unknown error",),
            }
            error = self.failing.get(name, runtime.cudaError_t.cudaSuccess)
            return error, *values.get(name, (256,))

        call.__name__ = name
        return call


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    fake = FakeRuntime()
    monkeypatch.setattr(cuda, "runtime", fake)
    return fake


def test_a_missing_gpu_is_refused(fake: FakeRuntime) -> None:
    with pytest.raises(EnvironmentMismatchError, match="has 2 CUDA devices"):
        cuda.CudaDevice(2)


def test_a_device_takes_its_description_from_the_driver(fake: FakeRuntime) -> None:
    device = cuda.CudaDevice(1)
    assert (device.name, device.index, device.compute_capability) == ("NVIDIA H200", 1, "9.9")


def test_a_failed_call_is_named_and_its_error_is_cleared(fake: FakeRuntime) -> None:
    device = cuda.CudaDevice()
    fake.failing["cudaMemsetAsync"] = runtime.cudaError_t.cudaErrorUnknown
    with pytest.raises(DeviceError, match=r"cudaMemsetAsync \| failed with cudaErrorUnknown"):
        device.fill(256, 1, 0)
    assert "cudaGetLastError" in fake.calls


def test_an_out_of_memory_error_names_the_free_bytes(fake: FakeRuntime) -> None:
    device = cuda.CudaDevice()
    fake.failing["cudaMalloc"] = runtime.cudaError_t.cudaErrorMemoryAllocation
    with pytest.raises(CapacityError, match=r"2,000 bytes needed at once, 100 free of 1,000"):
        device.allocate(2000)


def test_memory_is_freed_once_the_stream_is_done(fake: FakeRuntime) -> None:
    device = cuda.CudaDevice()
    buffer = DeviceMemory(device).allocate(8)
    fake.calls.clear()
    del buffer
    gc.collect()
    assert [call for call in fake.calls if call != "cudaSetDevice"] == [
        "cudaStreamSynchronize",
        "cudaFree",
    ]


def test_nothing_is_freed_during_a_capture(fake: FakeRuntime) -> None:
    device = cuda.CudaDevice()
    memory = DeviceMemory(device)
    buffer = memory.allocate(8)
    device.begin_capture()
    del buffer
    gc.collect()
    assert "cudaFree" not in fake.calls
    device.end_capture()
    assert fake.calls.index("cudaFree") > fake.calls.index("cudaStreamEndCapture")


@pytest.mark.parametrize("name", ["cudaStreamBeginCapture", "cudaStreamEndCapture"])
def test_nothing_is_freed_while_a_capture_begins_or_ends(fake: FakeRuntime, name: str) -> None:
    device = cuda.CudaDevice()
    memory = DeviceMemory(device)
    buffers = [memory.allocate(8), memory.allocate(8)]
    capture = getattr(fake, name)

    def collected(*arguments: Any) -> tuple[Any, ...]:  # noqa: ANN401
        buffers.pop()
        gc.collect()
        result: tuple[Any, ...] = capture(*arguments)
        buffers.pop()
        gc.collect()
        return result

    setattr(fake, name, collected)
    fake.calls.clear()
    device.begin_capture()
    device.end_capture()
    begin, end = map(fake.calls.index, ("cudaStreamBeginCapture", "cudaStreamEndCapture"))
    assert {"cudaFree", "cudaStreamSynchronize"}.isdisjoint(fake.calls[begin:end])
    assert fake.calls.count("cudaFree") == 2


def test_a_device_is_usable_after_a_capture_that_did_not_begin(fake: FakeRuntime) -> None:
    device = cuda.CudaDevice()
    fake.failing["cudaStreamBeginCapture"] = runtime.cudaError_t.cudaErrorUnknown
    with pytest.raises(DeviceError, match="cudaStreamBeginCapture"):
        device.begin_capture()
    device.free(256)
    assert "cudaFree" in fake.calls


def test_a_device_is_usable_after_a_failed_capture(fake: FakeRuntime) -> None:
    device = cuda.CudaDevice()
    device.begin_capture()
    fake.failing["cudaStreamEndCapture"] = runtime.cudaError_t.cudaErrorStreamCaptureInvalidated
    with pytest.raises(DeviceError, match="cudaStreamEndCapture"):
        device.end_capture()
    device.free(256)
    assert "cudaFree" in fake.calls


def test_an_interrupt_ends_the_capture(fake: FakeRuntime) -> None:
    device = cuda.CudaDevice()

    def stop() -> None:
        raise KeyboardInterrupt

    fake.failing["cudaStreamEndCapture"] = runtime.cudaError_t.cudaErrorStreamCaptureInvalidated
    with pytest.raises(KeyboardInterrupt):
        device.capture(stop)
    assert fake.calls.count("cudaStreamEndCapture") == 1
    device.free(256)
    assert "cudaFree" in fake.calls


def test_closing_a_device_ends_its_capture_first(fake: FakeRuntime) -> None:
    device = cuda.CudaDevice()
    device.begin_capture()
    device.close()
    order = ("cudaStreamEndCapture", "cudaStreamSynchronize", "cudaStreamDestroy")
    places = [fake.calls.index(name) for name in order]
    assert places == sorted(places)


@pytest.fixture
def device() -> Iterator[CudaDevice]:
    try:
        device = cuda.CudaDevice()
    except EnvironmentMismatchError as error:
        pytest.skip(str(error))
    yield device
    device.close()


@pytest.mark.gpu
def test_a_gpu_runs_copies_fills_and_graphs(device: CudaDevice) -> None:
    memory = DeviceMemory(device)
    cache = memory.empty((2, 3, 4, 2), "float16")  # [rows, N, T, D]
    assert cache.address % 256 == 0
    source = device.pinned(cache.nbytes).view(np.float16).reshape(cache.shape)
    target = device.pinned(cache.nbytes).view(np.float16).reshape(cache.shape)
    source[...] = np.arange(source.size).reshape(source.shape)

    def enqueue() -> None:
        device.copy_to_device(cache.address, source)
        memory.copy_between((cache, 0), (cache, 1), 2)
        device.fill(cache.address + cache.nbytes - 2, 2, 0)
        device.copy_to_host(target, cache.address)

    graph = device.capture(enqueue)
    device.synchronize()
    assert not target.any()
    for factor in (1, 2):
        source[...] = factor * np.arange(source.size).reshape(source.shape)
        graph.launch()
        device.synchronize()
        expected = source.copy()
        expected[0, :, :2] = source[1, :, :2]
        expected[-1, -1, -1, -1] = 0
        np.testing.assert_array_equal(target, expected)
    graph.destroy()


@pytest.mark.gpu
@pytest.mark.parametrize("row_bytes", [13, 16, 8192])
def test_a_gpu_gathers_the_indexed_rows(device: CudaDevice, row_bytes: int) -> None:
    memory = DeviceMemory(device)
    rows, index = memory.empty((5, row_bytes), "uint8"), memory.empty((4,), "int64")
    gathered = memory.empty((4, row_bytes), "uint8")
    source = device.pinned(rows.nbytes)
    source[...] = np.random.default_rng(0).integers(0, 256, rows.nbytes)
    chosen, target = device.pinned(32).view(np.int64), device.pinned(gathered.nbytes)
    device.copy_to_device(rows.address, source)

    def gather() -> None:
        device.copy_to_device(index.address, chosen)
        places = (gathered.address, rows.address, index.address)
        device.copy_rows(*places, rows=4, row_bytes=row_bytes)
        device.copy_to_host(target, gathered.address)

    gather()
    device.synchronize()
    graph = device.capture(gather)
    for order in ([0, 1, 2, 3], [4, 4, 0, 3]):
        chosen[...] = order
        graph.launch()
        device.synchronize()
        expected = source.reshape(5, row_bytes)[order]
        np.testing.assert_array_equal(target.reshape(4, row_bytes), expected)
    graph.destroy()


@pytest.mark.gpu
def test_a_gpu_reports_low_memory(device: CudaDevice) -> None:
    with pytest.raises(CapacityError, match="free of"):
        device.allocate(1 << 50)
    device.synchronize()  # the failure is cleared
