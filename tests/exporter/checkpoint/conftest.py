"""A copy of a checkpoint for the tests of this folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fixture_types import Checkpoints


@pytest.fixture
def directory(checkpoint: Checkpoints, tmp_path: Path) -> Path:
    """Return a copy of the tiny pre-norm checkpoint that a test may change."""
    return Path(shutil.copytree(checkpoint("pre_norm"), tmp_path / "tiny"))
