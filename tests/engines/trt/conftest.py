"""Provide a machine with a fake TensorRT, and plans."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from fixture_types import Exported
from tensorrt_machine import Compiled, Machine, small_bundle


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def compiled(exported: Exported, tmp_path: Path) -> Compiled:
    """Return ``compiled(**build)``, which calls ``small_bundle``."""
    return partial(small_bundle, exported, tmp_path)
