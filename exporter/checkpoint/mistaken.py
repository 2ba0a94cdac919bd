"""Recognises paths that are often mistaken for checkpoints, and says what to do with them."""

from __future__ import annotations

import re
from pathlib import Path

from ...engines.documents import open_regular, read_object
from ...engines.errors import CheckpointError

_SHARD = re.compile(r"(model|pytorch_model)-\d{5}-of-\d{5}\.(safetensors|bin)")
_CACHED = re.compile(r"models--(?:([\w.-]+?)--)?([\w.-]+)")
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
ADAPTER_NAME = "adapter_config.json"


def mistaken(path: Path) -> str | None:
    """Return a sentence if ``path`` is a GGUF file, a PEFT adapter, or the like; else None.

    This includes a directory that has shards without their index.
    """
    if path.suffix.lower() == ".gguf":
        return (
            "is a GGUF file, for llama.cpp; pass the directory or the hub id of the model that it "
            "was made of, with safetensors, and choose --quantize"
        )
    if not path.is_dir():
        return None
    if (cached := _CACHED.fullmatch(path.name)) and (path / "snapshots").is_dir():
        hub_id = "/".join(part for part in cached.groups() if part)
        return (
            f"is a folder of the hub's cache; pass the hub id {hub_id}, or one of the directories "
            f"in {path.name}/snapshots"
        )
    if (path / ADAPTER_NAME).is_file():
        return (
            f"holds a PEFT adapter{_of_base(path / ADAPTER_NAME)}, not a whole model; merge it: "
            "AutoPeftModelForCausalLM.from_pretrained(ADAPTER).merge_and_unload()"
            ".save_pretrained(DIRECTORY), copy the tokenizer's files there, and pass DIRECTORY"
        )
    names = sorted(entry.name for entry in path.iterdir())
    if shards := [name for name in names if _SHARD.fullmatch(name)]:
        stem, suffix = _SHARD.fullmatch(shards[0]).groups()  # type: ignore[union-attr]
        return (
            f"has {shards[0]} but no {stem}.{suffix}.index.json, which says what is in each part; "
            "download the index, too, or save the model again by save_pretrained"
        )
    if files := [name for name in names if name.lower().endswith(".gguf")]:
        return f"holds {files[0]}, which {mistaken(path / files[0])}"
    return None


def is_lfs_pointer(path: Path) -> bool:
    """Return True if Git LFS, which a clone was made without, would put another file there."""
    with open_regular(path) as file:
        return file.read(len(_LFS_POINTER)) == _LFS_POINTER


def _of_base(path: Path) -> str:
    """Return the name of the model that an adapter belongs to, if its file has one."""
    base = read_object(path, CheckpointError).get("base_model_name_or_path")
    return f" of {base}" if isinstance(base, str) and base else ""
