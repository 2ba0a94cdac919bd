"""A diverging tuning stops with an error and publishes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from interruptions import add_callback
from transformers import TrainerCallback

from skipdec.calib.tuning.config import TuneConfig
from skipdec.calib.tuning.tuning import tune
from skipdec.engines.errors import SkipDecError

TOO_FAST = {"learning_rate": 1e25, "decay": "constant", "warmup_fraction": 0}


def settings(directory: Path, **changes: Any) -> TuneConfig:  # noqa: ANN401
    rows = directory / "rows.jsonl"
    line = json.dumps({"prompt": "name[Ant]", "completion": "Ant is a pub."})
    rows.write_text(f"{line}\n" * 8)
    values: dict[str, Any] = {
        "model": None,
        "from_scratch": "layers=4,width=32,heads=2,positions=48",
        "vocab_size": 300,
        "data": {"path": rows},
        "schedule": "2x",
        "output": directory / "tuned",
        "max_steps": 6,
        "batch_size": 2,
        "device": "cpu",
    }
    return TuneConfig(**{**values, **changes})


class Weight(TrainerCallback):  # type: ignore[misc]
    """Sets one weight at the end of a step, before the run's callbacks check the weights."""

    def __init__(self, value: float, step: int) -> None:
        self.value, self.step = value, step

    def on_optimizer_step(
        self,
        args: object,
        state: Any,  # noqa: ANN401
        control: object,
        model: torch.nn.Module,
        **_: object,
    ) -> None:
        if state.global_step + 1 == self.step:
            next(model.parameters()).data.view(-1)[0] = self.value


@pytest.mark.parametrize("logging_steps", [1, 100])
def test_a_non_finite_loss_or_weight_ends_the_run(logging_steps: int, tmp_path: Path) -> None:
    """A logged loss shows the divergence, else the check before saving."""
    with pytest.raises(SkipDecError) as caught:
        tune(settings(tmp_path, **TOO_FAST, logging_steps=logging_steps, bf16=True))
    text = str(caught.value)
    seen = "the training loss is nan" if logging_steps == 1 else "not finite after step 6"
    assert seen in text
    assert "lower --learning-rate (it is 1e+25), leave out --bf16, or look at the data" in text
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_earlier_saves_stay_and_diverged_weights_are_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_callback(Weight(torch.nan, 4), monkeypatch)
    with pytest.raises(SkipDecError, match=r"not finite after step 4.* the save of step 2 stays"):
        tune(settings(tmp_path, save_steps=2, logging_steps=100))
    saves = tmp_path / ".tuned.tuning" / "checkpoints"
    assert [path.name for path in saves.iterdir()] == ["checkpoint-2"]
    assert not settings(tmp_path).output.exists()


def test_weights_are_checked_in_the_published_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1e5 is finite in float32 but not in float16."""
    add_callback(Weight(1e5, 1), monkeypatch)
    with pytest.raises(SkipDecError, match=r"not finite as float16.*leave out save_dtype float16"):
        tune(settings(tmp_path, max_steps=1, save_dtype="float16"))
    assert not settings(tmp_path).output.exists()


def test_a_non_finite_held_out_loss_publishes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skipdec.calib.tuning.batches.mean_loss", lambda *_, **__: float("nan"))
    config = settings(tmp_path, max_steps=1, validation={"path": tmp_path / "rows.jsonl"})
    with pytest.raises(SkipDecError, match=r"held-out losses are .*nan"):
        tune(config)
    assert not config.output.exists()
