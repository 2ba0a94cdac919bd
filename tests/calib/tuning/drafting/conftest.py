"""Provide a toy language of eight sentences and a model that writes them at full depth."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skipdec.calib.tuning.config import TuneConfig
from skipdec.calib.tuning.tuning import tune

NAMES = ("Ant", "Bee", "Cat", "Dog", "Eel", "Fox", "Gnu", "Hen")


@pytest.fixture(scope="session")
def toy_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy") / "rows.jsonl"
    lines = (
        {
            "prompt": f"name[{name}]",
            "completion": f"{name} is a pub, and {name} is cheap" + "." * index,
        }
        for index, name in enumerate(NAMES)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="session")
def toy_model(toy_rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint of 4 layers that writes the sentences but drafts badly."""
    output = tmp_path_factory.mktemp("toy") / "model"
    config = TuneConfig(
        from_scratch="layers=4,width=32,heads=2,positions=48,dropout=0.1",
        vocab_size=300,
        data={"path": toy_rows},
        schedule="full",
        output=output,
        max_steps=80,
        batch_size=8,
        learning_rate=1e-2,
        device="cpu",
    )
    tune(config)
    return output


@pytest.fixture
def settings(toy_model: Path, toy_rows: Path, tmp_path: Path) -> Callable[..., TuneConfig]:
    """Return ``settings(name, **changes)``: tune the toy model for 12 steps to tmp_path/name."""

    def make(name: str = "tuned", **changes: Any) -> TuneConfig:  # noqa: ANN401
        values: dict[str, Any] = {
            "model": str(toy_model),
            "data": {"path": toy_rows},
            "validation": toy_rows,
            "output": tmp_path / name,
            "max_steps": 12,
            "batch_size": 8,
            "learning_rate": 1e-2,
            "device": "cpu",
        }
        return TuneConfig(**{**values, **changes})

    return make
