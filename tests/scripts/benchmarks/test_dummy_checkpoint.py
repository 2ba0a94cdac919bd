"""Dummy checkpoints contain the weights of ``--load-format dummy``, in both file formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.cpu.dummy_checkpoint import FileFormat, write_dummy_checkpoint

from skipdec.exporter.architecture.architecture import expected_tensors
from skipdec.exporter.checkpoint.checkpoint import open_checkpoint
from skipdec.exporter.checkpoint.dummy import DummyReader
from skipdec.exporter.config import CheckpointSource

CONFIG = {
    "model_type": "opt",
    "architectures": ["OPTForCausalLM"],
    "hidden_size": 16,
    "word_embed_proj_dim": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "ffn_dim": 32,
    "vocab_size": 50,
    "max_position_embeddings": 20,
}


@pytest.mark.parametrize("file_format", ["safetensors", "bin"])
def test_sharded_files_read_back(tmp_path: Path, file_format: FileFormat) -> None:
    directory = tmp_path / "model"
    write_dummy_checkpoint(CONFIG, directory, file_format, seed=3, shard_bytes=4000)
    assert len(list(directory.glob(f"*.{file_format}"))) > 2
    checkpoint = open_checkpoint(CheckpointSource(model=str(directory)))
    assert checkpoint.load_format == file_format
    made_up = DummyReader(expected_tensors(checkpoint.model), seed=3)
    for name in made_up.names():
        np.testing.assert_array_equal(checkpoint.reader.read(name), made_up.read(name))
