"""The files of a draft layer: its weights, and to which model it belongs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ....engines.checking import FrozenModel
from ....engines.documents import naming_full_disk, write_file
from ....exporter.checkpoint.draft_layer import DraftedModel
from ..work import DRAFT_LAYER_NAME

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS_NAME = "draft_layer.safetensors"


class DraftTraining(FrozenModel):
    """How a draft layer was trained."""

    steps: int
    examples: int
    learning_rate: float
    seed: int


class DraftAcceptance(FrozenModel):
    """How many drafts held on held-out data."""

    held_of_6: float = Field(description="mean number of 6 drafts that hold")
    first: float = Field(description="share of first drafts that hold")


class DraftLayerDocument(FrozenModel):
    """``draft_layer.json``. A draft runs layers 0 … behind − 1, the draft layer, norm and head."""

    format: Literal[1] = 1
    behind: int = Field(ge=1)
    model: DraftedModel
    training: DraftTraining
    acceptance: DraftAcceptance | None = Field(description="absent without held-out data")


def write_draft_layer(
    directory: Path, weights: dict[str, Tensor], document: DraftLayerDocument
) -> None:
    """Write both files to ``directory``; names of ``weights`` are as in the model's own layers."""
    from safetensors import SafetensorError
    from safetensors.torch import save

    with naming_full_disk(directory, SafetensorError):
        # As bytes: the package would make a file that its owner alone can read.
        content = save({name: tensor.contiguous() for name, tensor in weights.items()})
        write_file(directory / WEIGHTS_NAME, content)
    described = document.model_dump_json(indent=2, exclude_none=True)
    write_file(directory / DRAFT_LAYER_NAME, described + "\n")
