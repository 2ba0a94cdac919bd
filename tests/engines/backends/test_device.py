"""Test the device protocol on host memory: deferred work, graphs, and refused misuse."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from host_device import HostDevice

from skipdec.engines.backends.device import DeviceMemory, misplaced
from skipdec.engines.backends.ort_cuda import OrtRehearsalBackend
from skipdec.engines.backends.session import open_backend
from skipdec.engines.errors import CapacityError, DeviceError, UsageError
from skipdec.engines.manifest import TensorRole


@pytest.fixture
def device() -> HostDevice:
    return HostDevice()


def test_copies_run_in_order_at_synchronize(device: HostDevice) -> None:
    address = device.allocate(4)
    source, target = device.pinned(4), device.pinned(4)
    source[...] = [1, 2, 3, 4]
    device.copy_to_device(address, source)
    device.fill(address + 2, 2, 9)
    device.copy_to_host(target, address)
    assert not target.any()
    device.synchronize()
    assert target.tolist() == [1, 2, 9, 9]


def test_a_graph_runs_the_captured_work_only_when_launched(
    device: HostDevice,
) -> None:
    address = device.allocate(1)
    device.fill(address, 1, 1)
    device.begin_capture()
    device.enqueue(lambda: device.bytes_at(address, 1).__iadd__(2))
    graph = device.end_capture()
    device.synchronize()
    assert device.bytes_at(address, 1) == 1
    graph.launch()
    graph.launch()
    device.synchronize()
    assert device.bytes_at(address, 1) == 5
    graph.destroy()
    with pytest.raises(DeviceError, match="destroyed"):
        graph.launch()


@pytest.mark.parametrize("action", ["allocate", "pinned", "synchronize", "begin_capture"])
def test_calls_that_would_break_a_capture_are_refused(device: HostDevice, action: str) -> None:
    arguments = [8] if action in ("allocate", "pinned") else []
    device.begin_capture()
    with pytest.raises(DeviceError, match="during a capture"):
        getattr(device, action)(*arguments)
    device.end_capture()
    getattr(device, action)(*arguments)


def test_memory_is_freed_after_the_work_that_uses_it_has_run(device: HostDevice) -> None:
    memory = DeviceMemory(device)
    tensor = memory.empty((2, 8), "float32")
    address = tensor.address
    device.fill(address, tensor.nbytes, 7)
    row = tensor[1:]
    del tensor
    gc.collect()
    assert row.address == address + 32  # the row keeps the buffer
    del row
    gc.collect()
    device.synchronize()
    assert address in device.freed
    device.fill(address, 1, 0)
    with pytest.raises(DeviceError, match="allocated"):
        device.synchronize()


def test_a_free_during_a_capture_is_not_captured(device: HostDevice) -> None:
    address = device.allocate(8)
    device.begin_capture()
    device.free(address)
    graph = device.end_capture()
    device.synchronize()
    assert device.freed == {address}
    graph.launch()
    device.synchronize()


def test_work_after_a_failure_is_dropped_but_memory_is_freed(device: HostDevice) -> None:
    address, ran = device.allocate(8), []
    device.fill(1, 8, 0)  # address 1 is not allocated
    device.enqueue(lambda: ran.append("behind"))
    device.free(address)
    with pytest.raises(DeviceError, match=r"8 bytes at .* are not allocated"):
        device.synchronize()
    assert device.freed == {address}
    device.synchronize()
    device.close()
    assert not ran


def test_new_device_memory_is_nan_until_it_is_zeroed(device: HostDevice) -> None:
    assert np.isnan(device.bytes_at(device.allocate(100), 100).view(np.float16)).all()
    buffer = DeviceMemory(device).allocate(100)
    device.synchronize()
    assert not device.bytes_at(buffer.address, 100).any()


def test_an_out_of_memory_error_names_the_numbers() -> None:
    device = HostDevice(limit=1000)
    kept = device.allocate(600)
    with pytest.raises(CapacityError, match=r"500 bytes needed at once, 400 free of 1,000"):
        device.allocate(500)
    device.free(kept)
    device.allocate(500)  # memory that waits to be freed counts as free


def test_a_row_of_a_cache_is_copied_over_another(device: HostDevice) -> None:
    memory = DeviceMemory(device)
    cache = memory.empty((2, 3, 4, 2), "float16")  # [rows, N, T, D]
    host = np.arange(2 * 3 * 4 * 2, dtype=np.float16).reshape(cache.shape)
    device.copy_to_device(cache.address, host.copy())
    memory.copy_between((cache, 0), (cache, 1), 2)
    result = device.pinned(cache.nbytes)
    device.copy_to_host(result, cache.address)
    device.synchronize()
    host[0, :, :2] = host[1, :, :2]
    np.testing.assert_array_equal(result.view(np.float16).reshape(cache.shape), host)


def test_tensors_in_the_wrong_place_are_named(device: HostDevice) -> None:
    on_device = DeviceMemory(device).empty((1,), "int32")
    on_host = np.zeros(1, np.int32)
    scalar, other = TensorRole.TOTAL_SEQUENCE_LENGTH, TensorRole.SEQLENS_K
    assert misplaced({scalar: on_host, other: on_device}, frozenset({scalar})) == []
    problems = misplaced({scalar: on_device, other: on_host}, frozenset({scalar}))
    assert len(problems) == 2
    assert "total_sequence_length is on the device" in problems[0]


def test_rehearsal_is_the_name_of_a_device() -> None:
    backend = open_backend("onnxruntime", device="rehearsal")
    assert isinstance(backend, OrtRehearsalBackend)
    with pytest.raises(
        UsageError, match="'rehearsal', where tensorrt engines can't run; allowed: cuda"
    ):
        open_backend("tensorrt", device="rehearsal")
    for unknown in ("tpu", "", "cpu:0", "cuda:", "cuda:" + "9" * 5000, 5):
        with pytest.raises(UsageError, match="allowed: cpu, cuda, cuda:INDEX, rehearsal"):
            open_backend("onnxruntime", device=unknown)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="threads"):
        open_backend("onnxruntime", device="rehearsal", threads=2)


def test_a_captured_row_copy_reads_its_index_at_each_launch(device: HostDevice) -> None:
    source, target, index = device.allocate(12), device.allocate(6), device.allocate(16)
    rows, chosen, seen = device.pinned(12), device.pinned(16), device.pinned(6)
    rows[...] = range(12)
    device.copy_to_device(source, rows)
    device.begin_capture()
    device.copy_rows(target, source, index, rows=2, row_bytes=3)
    graph = device.end_capture()
    for order, expected in (([3, 0], [9, 10, 11, 0, 1, 2]), ([1, 1], [3, 4, 5, 3, 4, 5])):
        chosen.view(np.int64)[...] = order
        device.copy_to_device(index, chosen)
        graph.launch()
        device.copy_to_host(seen, target)
        device.synchronize()
        assert seen.tolist() == expected


def test_a_row_is_copied_to_a_cache_of_another_capacity(device: HostDevice) -> None:
    memory = DeviceMemory(device)
    small, large = memory.empty((2, 2, 3, 1), "uint8"), memory.empty((1, 2, 5, 1), "uint8")
    held, seen = device.pinned(12), device.pinned(10)
    held[...] = range(12)
    device.copy_to_device(small.address, held)
    device.fill(large.address, 10, 99)
    memory.copy_between((large, 0), (small, 1), 2)
    device.copy_to_host(seen, large.address)
    device.synchronize()
    assert seen.tolist() == [6, 7, 99, 99, 99, 9, 10, 99, 99, 99]
