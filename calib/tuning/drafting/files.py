"""The files of a draft layer: its weights, and to which model it belongs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ....engines.checking import FrozenModel
from ....engines.documents import naming_full_disk, write_file
from ....exporter.checkpoint.checkpoint import open_checkpoint
from ....exporter.config import CheckpointSource
from ..work import DRAFT_LAYER_NAME

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS_NAME = "draft_layer.safetensors"


class DraftedModel(FrozenModel):
    """The model to which a draft layer belongs."""

    hidden_size: int
    ffn_dim: int | None = Field(description="None in a family whose config.json has no such entry")
    num_attention_heads: int
    num_hidden_layers: int
    vocab_size: int
    sha256: str = Field(description="content of all tensors, whatever files they are in")

    @classmethod
    def of(cls, directory: Path) -> DraftedModel:
        """Return the record of the checkpoint in ``directory``; hashes every tensor once."""
        checkpoint = open_checkpoint(CheckpointSource(model=str(directory)))
        model = checkpoint.model
        width = (model.model_extra or {}).get("ffn_dim")
        return cls(
            hidden_size=model.hidden_size,
            ffn_dim=width if isinstance(width, int) else None,
            num_attention_heads=model.num_heads,
            num_hidden_layers=model.num_layers,
            vocab_size=model.vocab_size,
            sha256=checkpoint.source()["content"],
        )


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
