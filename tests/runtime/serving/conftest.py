"""Workers of all tests can import the steered one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import steered_worker


@pytest.fixture(autouse=True)
def _steered_worker_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = str(Path(steered_worker.__file__).parent)
    monkeypatch.setenv("PYTHONPATH", directory, prepend=os.pathsep)
