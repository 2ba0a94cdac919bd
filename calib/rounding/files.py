"""Files of a rounded checkpoint: its weights, written engine by engine, and its report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from safetensors import SafetensorError
from safetensors.numpy import save_file

from ...engines.bundle.place import Place
from ...engines.checking import FrozenModel
from ...engines.documents import naming_failed_write, write_file
from ...exporter.checkpoint.formats import share_weights
from ...exporter.checkpoint.template import TEMPLATE_NAME
from ...exporter.checkpoint.tokenizer import TEXT_FILES
from .config import GridTarget

REPORT_NAME = "rounding_report.json"
_INDEX_NAME = "model.safetensors.index.json"
_CARRIED_FILES = (*TEXT_FILES, TEMPLATE_NAME)


class CheckpointFiles:
    """Writes one file of weights per engine into ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file_of: dict[str, str] = {}
        self._total_size = 0

    def add(self, engine: str, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Write ``tensors``, by canonical name; makes a copy of them in memory."""
        if not tensors:
            return
        name = f"model-{engine}.safetensors"
        stored = {_stored_name(key): np.ascontiguousarray(tensors[key]) for key in tensors}
        with naming_failed_write(self._directory, SafetensorError):
            save_file(stored, self._directory / name, metadata={"format": "pt"})
        self._file_of |= dict.fromkeys(stored, name)
        self._total_size += sum(tensor.nbytes for tensor in stored.values())

    def finish(self, source: Path, config: Mapping[str, Any], others: Mapping[str, bytes]) -> None:
        """Write the index, config.json and ``others``, and copy small files of ``source``."""
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
            write_file(self._directory / name, content)
        share_weights(self._directory)


def rounded_place(output: Path) -> Place:
    """Return the place of the rounded checkpoint ``output``."""
    return Place(output.absolute(), REPORT_NAME, "a rounded checkpoint")


def _stored_name(name: str) -> str:
    """Return the name that transformers uses in a causal language model."""
    return name if name.startswith("lm_head.") else f"model.{name}"


class RoundedProduct(FrozenModel):
    """Errors of one product with int4 weights, on the float32 model's inputs from held-out texts.

    Each error is a root mean square relative to that of the exact output, bias included.
    """

    engine: str
    weight: str
    tokens: int = Field(description="held-out tokens that ran the product")
    nearest_error: float = Field(description="weights rounded to nearest, as export does")
    rounded_error: float = Field(description="the weights that were written")


class RoundedLoss(FrozenModel):
    """Cross-entropy of held-out completions at scheduled depth, in nats per token.

    ``nearest`` and ``rounded`` have all layers and the head in int4, activations in float32.
    """

    texts: int
    tokens: int
    float32: float
    nearest: float
    rounded: float


class RoundingReport(FrozenModel):
    """Report of a finished rounding."""

    output: Path = Field(exclude=True)
    model: str
    target: GridTarget
    block_size: int
    schedule: str
    texts: int
    tokens: int = Field(description="observed, prompts included")
    head: Literal["gptq", "nearest"] = Field(description="nearest: tied to the embedding")
    products: tuple[RoundedProduct, ...]
    loss: RoundedLoss
    warnings: tuple[str, ...]
