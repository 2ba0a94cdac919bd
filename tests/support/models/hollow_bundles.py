"""Make bundles with a real manifest and empty engines, for tests that don't run engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from skipdec.engines.bundle import EngineBundle, file_record
from skipdec.engines.bundle.writer import BundleWriter
from skipdec.engines.manifest import (
    EngineKind,
    EngineSpec,
    FileRecord,
    Manifest,
    ModelSpec,
    PrecisionSpec,
    TensorRole,
    TensorSpec,
)
from skipdec.runtime.schedule import ExitSchedule

NUM_HEADS, HEAD_DIM = 2, 4
EMBED_BYTES, LAYER_BYTES, HEAD_BYTES = 10, 1000, 2000


def hollow_manifest(num_layers: int, **precision: Any) -> Manifest:  # noqa: ANN401
    """Return a manifest without files; every layer reads 1000 bytes per token, the head 2000."""
    engines = [
        _engine("embed", EngineKind.EMBED, None, EMBED_BYTES),
        *(
            _engine(f"layer_{index:03d}", EngineKind.LAYER, index, LAYER_BYTES)
            for index in range(num_layers)
        ),
        _engine("head", EngineKind.HEAD, None, HEAD_BYTES),
    ]
    paths = sorted(path for engine in engines for path in (engine.graph, *engine.weights))
    return Manifest(
        target="onnxruntime",
        model=ModelSpec(
            name="hollow",
            num_layers=num_layers,
            hidden_size=NUM_HEADS * HEAD_DIM,
            word_embed_proj_dim=NUM_HEADS * HEAD_DIM,
            num_heads=NUM_HEADS,
            ffn_dim=16,
            vocab_size=32,
            max_position_embeddings=256,
            max_seq_len=256,
        ),
        precision=PrecisionSpec(**precision),
        engines=tuple(engines),
        files=tuple(FileRecord(path=path, size=0, sha256="0" * 64) for path in paths),
    )


def write_hollow_bundle(target: Path, schedule: ExitSchedule, **changes: object) -> EngineBundle:
    """Publish a hollow bundle for ``schedule`` with ``changes`` to its manifest."""
    manifest = hollow_manifest(schedule.num_layers)
    with BundleWriter(target) as writer:
        for record in manifest.files:
            path = writer.directory / record.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(record.path.encode())
        files = tuple(file_record(writer.directory, record.path) for record in manifest.files)
        manifest = manifest.model_copy(update={"files": files, **changes})
        return writer.publish(manifest, schedule.to_document(), {})


def _engine(name: str, kind: EngineKind, layer_index: int | None, step_bytes: int) -> EngineSpec:
    shape = ("B", NUM_HEADS, "T", HEAD_DIM)
    cache = TensorSpec(name="past_key", role=TensorRole.PAST_KEY, dtype="float32", shape=shape)
    return EngineSpec(
        name=name,
        kind=kind,
        layer_index=layer_index,
        graph=f"engines/onnxruntime/{name}.onnx",
        weights=(f"engines/onnxruntime/{name}.weights",),
        inputs=(cache,) if kind == EngineKind.LAYER else (),
        outputs=(),
        step_bytes=step_bytes,
    )
