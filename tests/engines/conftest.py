"""Provide a bundle whose engines are not ONNX, which suffices to test files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hollow_bundles import hollow_manifest

from skipdec.engines.bundle import EngineBundle, file_record
from skipdec.engines.bundle.writer import BundleWriter
from skipdec.engines.manifest import Manifest

TOKENIZER = b'{"version": "1.0"}'
SCHEDULE: dict[str, Any] = {
    "num_layers": 2,
    "max_exit_layer": 2,
    "min_exit_layer": 2,
}


def write_engine_files(directory: Path, seed: int) -> Manifest:
    """Write the engines' files below ``directory`` and return the manifest that lists them."""
    hollow = hollow_manifest(2)
    for number, engine in enumerate(hollow.engines):
        (weights,) = engine.weights
        (directory / weights).parent.mkdir(parents=True, exist_ok=True)
        (directory / weights).write_bytes(bytes((seed + number + i) % 256 for i in range(300)))
        (directory / engine.graph).write_bytes(f"graph of {engine.name}".encode())
    (directory / "tokenizer.json").write_bytes(TOKENIZER)
    paths = [*(record.path for record in hollow.files), "tokenizer.json"]
    files = tuple(file_record(directory, path) for path in sorted(paths))
    return hollow.model_copy(update={"tokenizer": "tokenizer.json", "files": files})


def write_bundle(target: Path, *, seed: int = 0, force: bool = False) -> EngineBundle:
    with BundleWriter(target, force=force) as writer:
        manifest = write_engine_files(writer.directory, seed)
        return writer.publish(manifest, SCHEDULE, {"tokenizer.json": TOKENIZER})


@pytest.fixture
def make_bundle() -> Callable[..., EngineBundle]:
    """Return ``make_bundle(target, seed=0, force=False)``."""
    return write_bundle


@pytest.fixture
def make_engine_files() -> Callable[[Path, int], Manifest]:
    """Return ``make_engine_files(directory, seed)``, for tests that drive a BundleWriter."""
    return write_engine_files


@pytest.fixture
def bundle(tmp_path: Path) -> EngineBundle:
    """Return a published bundle at ``tmp_path / "bundle"``."""
    return write_bundle(tmp_path / "bundle")
