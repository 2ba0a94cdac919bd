"""A bundle whose engines are not ONNX: enough for all tests of files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skipdec.engines.bundle import EngineBundle, file_record
from skipdec.engines.bundle.writer import BundleWriter
from skipdec.engines.manifest import (
    EngineKind,
    EngineSpec,
    KVCacheSpec,
    Manifest,
    ModelSpec,
    PrecisionSpec,
)

TOKENIZER = b'{"version": "1.0"}'
SCHEDULE: dict[str, Any] = {
    "schedule": {"num_layers": 2, "max_exit_layer": 2, "min_exit_layer": 2},
    "plan": {},
    "presets": {},
}

TINY_MODEL = ModelSpec(
    name="tiny",
    num_layers=2,
    hidden_size=8,
    word_embed_proj_dim=8,
    num_heads=2,
    ffn_dim=16,
    vocab_size=32,
    max_position_embeddings=16,
    max_seq_len=16,
)


def write_engine_files(directory: Path, seed: int) -> Manifest:
    """Write the engines' files below ``directory`` and return the manifest that lists them."""
    engines = []
    names = [("embed", EngineKind.EMBED, None), ("layer_000", EngineKind.LAYER, 0)]
    names += [("layer_001", EngineKind.LAYER, 1), ("head", EngineKind.HEAD, None)]
    for number, (name, kind, layer_index) in enumerate(names):
        graph = f"engines/onnxruntime/{name}.onnx"
        weights = f"engines/onnxruntime/{name}.weights"
        (directory / graph).parent.mkdir(parents=True, exist_ok=True)
        (directory / graph).write_bytes(f"graph of {name}".encode())
        (directory / weights).write_bytes(bytes((seed + number + i) % 256 for i in range(300)))
        engines.append(
            EngineSpec(
                name=name,
                kind=kind,
                layer_index=layer_index,
                graph=graph,
                weights=(weights,),
                inputs=(),
                outputs=(),
                step_bytes=300,
            )
        )
    (directory / "tokenizer.json").write_bytes(TOKENIZER)
    paths = [path for engine in engines for path in (engine.graph, *engine.weights)]
    return Manifest(
        target="onnxruntime",
        model=TINY_MODEL,
        precision=PrecisionSpec(),
        kv_cache=KVCacheSpec(unused="any"),
        engines=tuple(engines),
        tokenizer="tokenizer.json",
        files=tuple(file_record(directory, path) for path in sorted([*paths, "tokenizer.json"])),
    )


def write_bundle(target: Path, *, seed: int = 0, force: bool = False) -> EngineBundle:
    with BundleWriter(target, force=force) as writer:
        manifest = write_engine_files(writer.directory, seed)
        return writer.publish(manifest, SCHEDULE, TOKENIZER)


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
