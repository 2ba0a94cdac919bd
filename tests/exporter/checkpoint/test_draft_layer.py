"""A draft layer has the structure of the model's last layer, under the names of layer 0."""

from __future__ import annotations

from pathlib import Path

from draft_layers import write_draft_layer
from tiny_models import LLAMA_BASE, random_model

from skipdec.engines.manifest import EngineKind
from skipdec.exporter.architecture.architecture import engine_parameters
from skipdec.exporter.checkpoint.checkpoint import open_checkpoint
from skipdec.exporter.checkpoint.draft_layer import read_draft_layer
from skipdec.exporter.config import CheckpointSource


def test_a_draft_layer_rotates_if_the_last_layer_does(tmp_path: Path) -> None:
    """Training starts from the last layer, which does not rotate in SmolLM3."""
    changes = {"model_type": "smollm3", "no_rope_layers": [1, 1, 1, 1, 1, 0]}
    random_model({**LLAMA_BASE, **changes}).save_pretrained(tmp_path)
    opened = open_checkpoint(CheckpointSource(model=str(tmp_path)))
    layer = read_draft_layer(write_draft_layer(tmp_path / "draft", str(tmp_path)), opened)
    values = [
        {each.name: each.values for each in engine_parameters(EngineKind.LAYER, model, index)}
        for model, index in ((layer.model, 0), (opened.model, 5), (opened.model, 0))
    ]
    assert values[0] == values[1] != values[2]
