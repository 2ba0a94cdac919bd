"""Tests share one tiny bundle, and workers of all tests can import the steered one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import steered_worker


@pytest.fixture(scope="session")
def bundle(exported: Callable[..., Path]) -> Path:
    return exported("pre_norm", quantize="int8", kernels="auto")


@pytest.fixture(autouse=True)
def _steered_worker_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = str(Path(steered_worker.__file__).parent)
    monkeypatch.setenv("PYTHONPATH", directory, prepend=os.pathsep)
