"""A Hugging Face checkpoint written engine by engine and published in one step."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from ...engines.bundle.place import (
    BundleLock,
    partial_path,
    place_problems,
    remove_tree,
    share_weights,
    sync_directory,
    sync_file,
    take_place,
)
from ...engines.errors import UsageError
from .report import REPORT_NAME

_INDEX_NAME = "model.safetensors.index.json"
_CARRIED_FILES = (
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
)


class CheckpointFiles:
    """Writes one file of weights for each engine into ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file_of: dict[str, str] = {}
        self._total_size = 0

    def add(self, engine: str, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Write ``tensors``, if any, by canonical name; copies of them are in memory meanwhile."""
        if not tensors:
            return
        name = f"model-{engine}.safetensors"
        stored = {_stored_name(key): np.ascontiguousarray(tensors[key]) for key in tensors}
        save_file(stored, self._directory / name, metadata={"format": "pt"})
        self._file_of |= dict.fromkeys(stored, name)
        self._total_size += sum(tensor.nbytes for tensor in stored.values())

    def finish(self, source: Path, config: Mapping[str, Any], others: Mapping[str, bytes]) -> None:
        """Write the index, config.json and ``others``, carry small files of ``source`` along."""
        index = {"metadata": {"total_size": self._total_size}, "weight_map": self._file_of}
        carried = {
            name: (source / name).read_bytes()
            for name in _CARRIED_FILES
            if (source / name).is_file()
        }
        documents = {_INDEX_NAME: index, "config.json": config}
        texts = {name: json.dumps(value, indent=2) + "\n" for name, value in documents.items()}
        written = {name: text.encode() for name, text in texts.items()}
        for name, content in {**carried, **written, **others}.items():
            (self._directory / name).write_bytes(content)
        share_weights(self._directory)


def check_output(output: Path, *, force: bool) -> None:
    """Raise UsageError if no checkpoint may be put at ``output``.

    With ``force`` a directory may be replaced that a rounding wrote, never anything else.
    """
    kind = "a rounded checkpoint"
    problems = place_problems(output.absolute(), mark=REPORT_NAME, kind=kind, force=force)
    if problems:
        raise UsageError(str(output), *problems)


@contextmanager
def published(output: Path) -> Iterator[Path]:
    """A new directory, beside ``output``, that takes its place when the block ends.

    Nothing is at ``output`` before, and nothing is left after an error. Raises BundleError while
    another process writes there.
    """
    output = output.absolute()
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(output)
    with BundleLock(output):
        remove_tree(partial)
        partial.mkdir()
        try:
            yield partial
        except BaseException:
            remove_tree(partial)
            raise
        for path in partial.iterdir():
            sync_file(path)
        sync_directory(partial)
        take_place(partial, output)


def _stored_name(name: str) -> str:
    """As transformers names it in a causal language model."""
    return name if name.startswith("lm_head.") else f"model.{name}"
