"""Fixtures for tests that change a bundle's documents and open it in both runtimes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from attack.readers import DOCUMENTS, NativeReader, native_reader
from programs import built_program


@pytest.fixture(scope="module")
def reader() -> Iterator[NativeReader]:
    with native_reader(built_program("read_bundles")) as native:
        yield native


@pytest.fixture
def bundle(text_bundle: Path, tmp_path: Path) -> Path:
    """Return a bundle whose documents may be changed; its engines are links."""
    for path in text_bundle.rglob("*"):
        copy = tmp_path / path.relative_to(text_bundle)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.name in DOCUMENTS:
            copy.write_bytes(path.read_bytes())
        elif path.is_file():
            copy.hardlink_to(path)
    return tmp_path
