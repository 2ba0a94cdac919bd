"""Fixtures for tests of the C++ programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from text_bundles import STRUCTURE, export_text_bundle


@pytest.fixture(scope="session")
def text_bundle(
    checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return a bundle of 6 layers with a byte tokenizer and the schedule 2x of horizon 4."""
    return export_text_bundle(checkpoint(STRUCTURE), tmp_path_factory.mktemp("text"))
