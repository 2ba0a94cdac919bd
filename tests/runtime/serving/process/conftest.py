"""A fixture shares one tiny bundle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def bundle(exported: Callable[..., Path]) -> Path:
    return exported("pre_norm", quantize="int8", kernels="auto")
