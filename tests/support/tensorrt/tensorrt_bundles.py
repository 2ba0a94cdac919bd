"""Make a tiny model that TensorRT's builder accepts, and configurations of its export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from skipdec.engines.host.events import Events
from skipdec.exporter.config import ExportConfig

TARGET = "tensorrt-rtx"
ENGINES = ("embed", "layer_000", "layer_001", "head", "candidates")
# With one bucket, a model of 2 layers has 5 plans.
TENSORRT: dict[str, Any] = {"gpu_arch": "8.9", "kv_buckets": [64]}


def write_config(directory: Path, **changes: Any) -> Path:  # noqa: ANN401
    """Write a checkpoint directory without weights: 2 layers, D = 16."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "opt",
        "vocab_size": 300,
        "hidden_size": 64,
        "word_embed_proj_dim": 64,
        "num_hidden_layers": 2,
        "ffn_dim": 96,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
    }
    (directory / "config.json").write_text(json.dumps(config | changes))
    return directory


def export_config(model: Path, output: Path, **options: Any) -> ExportConfig:  # noqa: ANN401
    """Configure random weights, float16, compute capability 8.9, without verification."""
    values = {
        "model": str(model),
        "output": output,
        "load_format": "dummy",
        "dtype": "float16",
        "target": TARGET,
        "tensorrt": TENSORRT,
        "verify": False,
    }
    return ExportConfig(**{**values, **options})


class Watched(Events):
    """Records engines reused from an earlier run, and can interrupt the build of a plan."""

    def __init__(self, interrupt_in: str | None = None) -> None:
        self.resumed: set[str] = set()
        self.progress: list[tuple[str, str, int, int]] = []
        self._interrupt_in = interrupt_in
        self._left = 5

    def part(self, name: str, phase: str, step: int, total: int) -> None:
        self.progress.append((name, phase, step, total))
        self._left -= name == self._interrupt_in
        if self._left == 0:
            raise KeyboardInterrupt

    def advance(self, item: str = "", steps: int = 1, *, detail: str = "") -> None:
        if "reused" in detail:
            self.resumed.add(item)
