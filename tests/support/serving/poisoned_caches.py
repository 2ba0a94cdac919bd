"""Memory that is NaN until something is written there: of caches, and of devices."""

from __future__ import annotations

import numpy as np
import pytest

from skipdec.engines.backends.device import DeviceMemory
from skipdec.engines.memory import DeviceBuffer
from skipdec.runtime.kv.buffers import BufferPool


def poison_caches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fill new memory of caches with bytes that are NaN in every type; return its users so far."""
    acquire, users = BufferPool.acquire, list[str]()

    def poisoned(self: BufferPool, nbytes: int, user: str = "") -> object:
        buffer = acquire(self, nbytes, user)
        np.asarray(buffer)[...] = 0xFF
        users.append(user)
        return buffer

    monkeypatch.setattr(BufferPool, "acquire", poisoned)
    return users


def poison_devices(monkeypatch: pytest.MonkeyPatch, value: int = 0xFF) -> None:
    """Fill new memory of devices with ``value``, by default NaN in every type."""
    allocate = DeviceMemory.allocate

    def poisoned(self: DeviceMemory, nbytes: int) -> DeviceBuffer:
        buffer = allocate(self, nbytes)
        self.device.fill(buffer.address, nbytes, value)
        return buffer

    monkeypatch.setattr(DeviceMemory, "allocate", poisoned)
