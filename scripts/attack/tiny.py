"""A bundle to attack: tiny, of random weights, with a tokenizer of a token a byte."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

CONFIG = {
    "model_type": "opt",
    "architectures": ["OPTForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 32,
    "word_embed_proj_dim": 32,
    "ffn_dim": 64,
    "num_attention_heads": 4,
    "vocab_size": 272,
    "max_position_embeddings": 64,
}


def tiny_bundle(
    directory: Path, *, seed: int = 0, quantize: str = "none", positions: int = 64
) -> Path:
    """Export a bundle below the new ``directory``, in a process of its own; some seconds."""
    model = directory / "model"
    model.mkdir(parents=True)
    config = CONFIG | {"max_position_embeddings": positions}
    (model / "config.json").write_text(json.dumps(config))
    bundle = directory / "bundle"
    command = [str(Path(sys.executable).with_name("skipdec")), "export", str(model)]
    command += ["--load-format", "dummy", "--seed", str(seed), "--no-verify", "--quiet"]
    command += ["--quantize", quantize]
    subprocess.run([*command, "--output", str(bundle)], check=True, stdout=subprocess.DEVNULL)
    return bundle
