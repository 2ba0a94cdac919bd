"""Write draft layers of random weights in the format of `skipdec tune --draft-layer`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from skipdec.calib.tuning.draft import layers_read
from skipdec.exporter.checkpoint.checkpoint import open_checkpoint
from skipdec.exporter.checkpoint.draft_layer import (
    FACTS_NAME,
    TENSORS_NAME,
    DraftedModel,
    DraftLayerFacts,
    draft_tensors,
)
from skipdec.exporter.config import CheckpointSource


def write_draft_layer(
    directory: Path,
    model: str,
    reads: tuple[int, int, int] | None = None,
    *,
    seed: int = 7,
    **source: Any,  # noqa: ANN401
) -> Path:
    """Write a layer for the checkpoint ``model``: matrices N(0, 0.2), vectors near 0 or 1.

    By default the layer reads the states of a tuned one; it scores every other token.
    """
    checkpoint = open_checkpoint(CheckpointSource(model=model, **source))
    token_ids = tuple(range(0, checkpoint.model.vocab_size, 2))
    own_head = {"vocab_size": len(token_ids), "tie_word_embeddings": False}
    torch.manual_seed(seed)
    tensors = {}
    for name, _, shape in draft_tensors(checkpoint.model.model_copy(update=own_head)):
        values = torch.randn(shape) * (0.2 if len(shape) > 1 else 0.1)
        is_gain = name.endswith("norm.weight") or ".norms." in name
        tensors[name] = values + 1 if is_gain else values
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / TENSORS_NAME)
    facts = DraftLayerFacts(
        reads=reads or layers_read(checkpoint.model.num_layers),
        token_ids=token_ids,
        model=DraftedModel.of(checkpoint.model, checkpoint.content),
    )
    (directory / FACTS_NAME).write_text(facts.model_dump_json(indent=2))
    return directory


def change_facts(directory: Path, changes: Mapping[str, Any]) -> None:
    """Change values of draft_layer.json; ``model.NAME`` names a value of its model."""
    path = directory / FACTS_NAME
    document = json.loads(path.read_text())
    for name, value in changes.items():
        parent, _, key = name.rpartition(".")
        (document[parent] if parent else document)[key] = value
    path.write_text(json.dumps(document))
