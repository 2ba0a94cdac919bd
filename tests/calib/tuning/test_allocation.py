"""Test how a training on a CPU keeps memory between steps."""

from __future__ import annotations

import ctypes
import resource
from pathlib import Path

import pytest
import torch

from skipdec.calib.tuning.allocation import kept_memory, return_free_memory

_MEGABYTES = 256


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="glibc alone is set so")
def test_freed_memory_is_kept_until_returned() -> None:
    before = _resident()
    with kept_memory():
        torch.ones(_MEGABYTES * 2**18)
        assert _resident() - before > 0.9 * _MEGABYTES
        return_free_memory()
        assert _resident() - before < 0.1 * _MEGABYTES
        torch.ones(_MEGABYTES * 2**18)
        assert _resident() - before > 0.9 * _MEGABYTES
    assert _resident() - before < 0.1 * _MEGABYTES


def _resident() -> float:
    """Return the resident megabytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20
