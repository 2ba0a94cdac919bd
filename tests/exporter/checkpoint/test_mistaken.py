"""Files often mistaken for a checkpoint are refused with what to pass instead."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from skipdec.engines.errors import CheckpointError
from skipdec.exporter.checkpoint.checkpoint import open_checkpoint
from skipdec.exporter.config import CheckpointSource


def as_adapter(directory: Path) -> Path:
    adapter = {"peft_type": "LORA", "base_model_name_or_path": "me/base"}
    (directory / "adapter_config.json").write_text(json.dumps(adapter))
    (directory / "model.safetensors").rename(directory / "adapter_model.safetensors")
    return directory


def as_cache(directory: Path) -> Path:
    cached = directory.parent / "models--me--my-model"
    (cached / "snapshots").mkdir(parents=True)
    return cached


def as_gguf(directory: Path) -> Path:
    (directory / "config.json").unlink()
    return (directory / "model.safetensors").rename(directory / "tiny.Q4_K_M.gguf")


def as_parts(directory: Path) -> Path:
    name = "model-00001-of-00002.safetensors"
    (directory / "model.safetensors").rename(directory / name)
    return directory


def as_clone_without_lfs(directory: Path) -> Path:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    (directory / "model.safetensors").write_text(pointer)
    return directory


def as_clone_of_bin_without_lfs(directory: Path) -> Path:
    as_clone_without_lfs(directory)
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    return directory


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (as_clone_without_lfs, "model.safetensors: is a Git LFS pointer, which stands for the"),
        (as_clone_of_bin_without_lfs, "pytorch_model.bin: is a Git LFS pointer, which stands"),
        (as_adapter, "holds a PEFT adapter of me/base, not a whole model; merge it: AutoPeft"),
        (as_cache, "is a folder of the hub's cache; pass the hub id me/my-model, or one of"),
        (as_gguf, "is a GGUF file, for llama.cpp; pass the directory or the hub id of the model"),
        (
            lambda directory: as_gguf(directory).parent,
            "holds tiny.Q4_K_M.gguf, which is a GGUF file, for llama.cpp; pass the directory or",
        ),
        (
            as_parts,
            "has model-00001-of-00002.safetensors but no model.safetensors.index.json, which says",
        ),
    ],
)
def test_common_mistakes_for_a_checkpoint_are_recognised(
    directory: Path, make: Callable[[Path], Path], problem: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(CheckpointSource(model=str(make(directory))))
    assert caught.value.problems[0].startswith(problem)
