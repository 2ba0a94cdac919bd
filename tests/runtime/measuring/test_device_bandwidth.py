"""Device bandwidth is bytes read and written divided by the stream's time."""

from __future__ import annotations

from itertools import count

import pytest

from skipdec.engines.backends.rehearsal import RehearsalDevice
from skipdec.engines.errors import CapacityError
from skipdec.runtime.measuring import bandwidth as device_bandwidth
from skipdec.runtime.measuring.bandwidth import DeviceBandwidthProbe

MIB = 2**20


def test_bytes_are_counted_in_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = count()  # each reading of the clock is one second later
    monkeypatch.setattr(device_bandwidth.time, "perf_counter", lambda: next(seconds))
    with DeviceBandwidthProbe(RehearsalDevice(), 3 * MIB + 5) as probe:
        assert probe.measure() == 2 * 3 * MIB * 8  # eight copies per pass
        assert probe.samples == [probe.best]


def test_a_pass_waits_for_the_copies_it_times(monkeypatch: pytest.MonkeyPatch) -> None:
    device = RehearsalDevice()
    done: list[str] = []
    copy, wait = device.copy_strided, device.synchronize

    def copy_strided(target: int, source: int, **sizes: int) -> None:
        assert source - target == sizes["width"] * sizes["height"] == 2 * MIB
        copy(target, source, **sizes)
        done.append("copy")

    def synchronize() -> None:
        wait()
        done.append("wait")

    monkeypatch.setattr(device, "copy_strided", copy_strided)
    monkeypatch.setattr(device, "synchronize", synchronize)
    probe = DeviceBandwidthProbe(device, 2 * MIB)
    done.clear()
    probe.measure()
    assert done == ["wait", *["copy"] * 8, "wait"]


def test_memory_is_released_and_a_shortage_reported() -> None:
    device = RehearsalDevice(limit=8 * MIB)
    for _ in range(3):
        with DeviceBandwidthProbe(device, 3 * MIB) as probe:
            assert probe.best_of_passes() > 0
    with pytest.raises(CapacityError):
        DeviceBandwidthProbe(device, 5 * MIB)
