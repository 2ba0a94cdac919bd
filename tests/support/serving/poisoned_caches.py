"""Caches whose memory is NaN until something is written there."""

from __future__ import annotations

import numpy as np
import pytest

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
