"""Draft layers of random weights, in the files that `skipdec tune --draft-layer` writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from skipdec.engines.manifest import EngineKind
from skipdec.exporter.architecture.architecture import engine_parameters
from skipdec.exporter.checkpoint.checkpoint import open_checkpoint
from skipdec.exporter.checkpoint.draft_layer import (
    FACTS_NAME,
    TENSORS_NAME,
    DraftedModel,
    DraftLayerFacts,
    layer_prefix,
)
from skipdec.exporter.config import CheckpointSource


def write_draft_layer(
    directory: Path,
    model: str,
    behind: int = 1,
    *,
    seed: int = 7,
    **source: Any,  # noqa: ANN401
) -> Path:
    """Write a layer for the checkpoint ``model``: matrices N(0, 0.2), vectors near 0 or 1."""
    checkpoint = open_checkpoint(CheckpointSource(model=model, **source))
    prefix = layer_prefix(checkpoint.model)
    torch.manual_seed(seed)
    tensors = {}
    for parameter in engine_parameters(EngineKind.LAYER, checkpoint.model, 0):
        for index, name in enumerate(parameter.sources):
            shape = parameter.source_shape(index)
            values = torch.randn(shape) * (0.2 if len(shape) > 1 else 0.1)
            is_gain = name.endswith("norm.weight")
            tensors[name.removeprefix(prefix)] = values + 1 if is_gain else values
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / TENSORS_NAME)
    facts = DraftLayerFacts(behind=behind, model=DraftedModel.of(checkpoint))
    (directory / FACTS_NAME).write_text(facts.model_dump_json(indent=2))
    return directory


def change_facts(directory: Path, changes: Mapping[str, Any]) -> None:
    """Change values of draft_layer.json, those of its model by ``model.NAME``."""
    path = directory / FACTS_NAME
    document = json.loads(path.read_text())
    for name, value in changes.items():
        parent, _, key = name.rpartition(".")
        (document[parent] if parent else document)[key] = value
    path.write_text(json.dumps(document))
