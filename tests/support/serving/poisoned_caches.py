"""Fill new memory of caches and devices with NaN."""

from __future__ import annotations

import numpy as np
import pytest

from skipdec.engines.backends.device import DeviceMemory
from skipdec.engines.memory import DeviceBuffer
from skipdec.runtime.kv.buffers import BufferPool


def poison_caches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fill new cache memory with bytes that are NaN in every type; return a list of its users."""
    acquire, users = BufferPool.acquire, list[str]()

    def poisoned(self: BufferPool, nbytes: int, user: str = "") -> object:
        buffer = acquire(self, nbytes, user)
        np.asarray(buffer)[...] = 0xFF
        users.append(user)
        return buffer

    monkeypatch.setattr(BufferPool, "acquire", poisoned)
    return users


def poison_devices(monkeypatch: pytest.MonkeyPatch, value: int = 0xFF) -> None:
    """Fill new memory of devices with ``value``, by default NaN in every type; caches with 0x46.

    0x46 is 6.3 in float16 and 12,690 in float32: attention multiplies memory after a row by 0.
    """
    allocate, acquire = DeviceMemory.allocate, BufferPool.acquire

    def poisoned(self: DeviceMemory, nbytes: int) -> DeviceBuffer:
        buffer = allocate(self, nbytes)
        self.device.fill(buffer.address, nbytes, value)
        return buffer

    def finite(self: BufferPool, nbytes: int, user: str = "") -> object:
        buffer = acquire(self, nbytes, user)
        assert isinstance(self.memory, DeviceMemory)
        assert isinstance(buffer, DeviceBuffer)
        self.memory.device.fill(buffer.address, buffer.nbytes, 0x46)
        return buffer

    monkeypatch.setattr(DeviceMemory, "allocate", poisoned)
    monkeypatch.setattr(BufferPool, "acquire", finite)
