"""Make bundles of plans for the fake TensorRT from bundles with canonical graphs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fake_tensorrt import VERSION

from skipdec.engines.bundle import EngineBundle, file_record
from skipdec.engines.manifest import (
    BuildSpec,
    EngineKind,
    EngineSpec,
    KVBucket,
    Manifest,
    TensorSpec,
)

_DEVICE_MEMORY = {
    EngineKind.EMBED: 256,
    EngineKind.LAYER: 4096,
    EngineKind.HEAD: 2048,
    EngineKind.CANDIDATES: 0,
}
_ALIASES = {"present_key": "past_key", "present_value": "past_value"}


def compile_bundle(
    source: Path,
    directory: Path,
    *,
    target: str = "tensorrt",
    kv_buckets: Sequence[int] = (16, 64),
    max_batch_size: int = 8,
    max_prompt_len: int = 64,
    max_prefill_rows: int = 8,
    **build: Any,  # noqa: ANN401  (fields of BuildSpec)
) -> Path:
    """Write a bundle of ``target`` at ``directory`` and return it.

    ``source`` was exported with ``keep_canonical=True``. ``build`` may set the version and compute
    capability that the plans claim; the defaults are the fake's and HostDevice's.
    """
    manifest = EngineBundle.open(source).manifest
    shutil.copytree(source, directory)
    record = BuildSpec(
        **{
            "version": VERSION,
            "compute_capability": "8.9",
            "driver": None,
            "max_batch_size": max_batch_size,
            "max_prompt_len": max_prompt_len,
            "max_prefill_rows": max_prefill_rows,
            "kv_buckets": tuple(kv_buckets),
            "optimization_level": 3,
            **build,
        }
    )
    engines = [_compile(directory, spec, target, record) for spec in manifest.canonical]
    plans = [path for engine in engines for path in engine.weights]
    compiled = Manifest(
        target=target,
        model=manifest.model,
        precision=manifest.precision,
        engines=tuple(spec for spec in engines if spec.kind is not EngineKind.CANDIDATES),
        candidates=next(spec for spec in engines if spec.kind is EngineKind.CANDIDATES),
        canonical=manifest.canonical,
        build=record,
        tokenizer=manifest.tokenizer,
        files=(*manifest.files, *(file_record(directory, path) for path in plans)),
    )
    (directory / "manifest.json").write_text(compiled.with_digest().to_json())
    return directory


def _compile(directory: Path, spec: EngineSpec, target: str, build: BuildSpec) -> EngineSpec:
    """Write a canonical engine's plan, or one per bucket."""
    capacities = build.kv_buckets if spec.kind is EngineKind.LAYER else (None,)
    graphs = []
    for capacity in capacities:
        bucket = "" if capacity is None else f".t{capacity}"
        graph = f"engines/{target}/{spec.name}{bucket}.plan"
        (directory / graph).parent.mkdir(parents=True, exist_ok=True)
        (directory / graph).write_text(json.dumps(_plan(directory, spec, capacity, build)))
        graphs.append(graph)
    buckets = [
        KVBucket(capacity=capacity, graph=graph)
        for capacity, graph in zip(capacities, graphs, strict=True)
        if capacity is not None
    ]
    changes = {"graph": graphs[0], "weights": tuple(graphs), "buckets": tuple(buckets)}
    return spec.model_copy(update=changes)


def _plan(
    directory: Path, spec: EngineSpec, capacity: int | None, build: BuildSpec
) -> dict[str, Any]:
    def tensors(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
        return [
            {
                "name": tensor.name,
                "dtype": tensor.dtype,
                "shape": [capacity if size == "T" else size for size in tensor.shape],
            }
            for tensor in specs
        ]

    return {
        "name": spec.name,
        "graph": str(directory / spec.graph),
        "inputs": tensors(spec.inputs),
        "outputs": tensors(spec.outputs),
        "aliases": _ALIASES if spec.kind is EngineKind.LAYER else {},
        "profiles": _profiles(spec.kind, build),
        "device_memory": _DEVICE_MEMORY[spec.kind],
    }


def _profiles(kind: EngineKind, build: BuildSpec) -> list[dict[str, tuple[int, int]]]:
    """Return the range of each symbol, in one profile for decode and one for prefill."""
    rows, prefill_rows = build.max_batch_size, build.max_prefill_rows
    if kind is EngineKind.CANDIDATES:
        return [{"R": (1, max(rows, prefill_rows))}]
    return [
        {"B": (1, rows), "S": (1, 1), "R": (1, rows)},
        {"B": (1, prefill_rows), "S": (1, build.max_prompt_len), "R": (1, max(64, prefill_rows))},
    ]
