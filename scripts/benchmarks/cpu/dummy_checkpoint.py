"""Write random checkpoints to disk, sharded like those on the hub."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from skipdec.exporter.architecture.architecture import expected_tensors
from skipdec.exporter.architecture.model_config import model_spec
from skipdec.exporter.checkpoint.dummy import DummyReader

FileFormat = Literal["safetensors", "bin"]

_ITEM_BYTES = 2  # float16
_STEMS = {"safetensors": "model", "bin": "pytorch_model"}


def write_dummy_checkpoint(
    config: Mapping[str, Any],
    directory: Path,
    file_format: FileFormat,
    *,
    seed: int = 0,
    shard_bytes: int = 10**9,
) -> None:
    """Write a model's ``config.json`` and seeded float16 weights, ``shard_bytes`` per file.

    The weights are those of ``export --load-format dummy`` with the same seed. Memory holds one
    file's weights at a time.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(dict(config), indent=2))
    reader = DummyReader(expected_tensors(model_spec(config, directory.name)), seed)
    shards = list(_shards(reader, shard_bytes))
    stem = _STEMS[file_format]
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = f"{stem}-{number:05d}-of-{len(shards):05d}.{file_format}"
        _write_shard(reader, names, directory / file, file_format)
        weight_map |= dict.fromkeys(names, file)
    total = sum(_nbytes(reader, name) for name in weight_map)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / f"{stem}.{file_format}.index.json").write_text(json.dumps(index, indent=2))


def _shards(reader: DummyReader, shard_bytes: int) -> Iterator[list[str]]:
    """Cut the sorted names into groups that fit a shard; a larger tensor is a shard alone."""
    group: list[str] = []
    size = 0
    for name in sorted(reader.names()):
        if group and size + _nbytes(reader, name) > shard_bytes:
            yield group
            group, size = [], 0
        group.append(name)
        size += _nbytes(reader, name)
    yield group


def _nbytes(reader: DummyReader, name: str) -> int:
    return math.prod(reader.shape(name)) * _ITEM_BYTES


def _write_shard(
    reader: DummyReader, names: list[str], path: Path, file_format: FileFormat
) -> None:
    arrays = {name: reader.read(name) for name in names}
    if file_format == "safetensors":
        from safetensors.numpy import save_file

        save_file(arrays, path, metadata={"format": "pt"})
        return
    import torch

    torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, path)
