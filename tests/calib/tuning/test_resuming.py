"""A resumed tuning continues with its original inputs or is refused."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from interruptions import Signal, interrupt
from safetensors.torch import load_file, save_file

from skipdec.calib.tuning.config import TuneConfig
from skipdec.calib.tuning.tuning import tune
from skipdec.engines.errors import UsageError

Settings = Callable[..., TuneConfig]


@pytest.fixture
def model(writing_model: Path, tmp_path: Path) -> Path:
    """Return a checkpoint whose chat template shows the day."""
    model = shutil.copytree(writing_model, tmp_path / "model")
    template = model / "chat_template.jinja"
    template.write_text("{{ strftime_now('%d') }}" + template.read_text())
    return model


@pytest.fixture
def settings(model: Path, tmp_path: Path) -> Settings:
    """Return ``settings(**changes)``: tune for six steps on eight chats to tmp_path/tuned."""
    rows = tmp_path / "rows.jsonl"
    answer = {"role": "assistant", "content": "bbb"}
    chats = [[{"role": "user", "content": f"a{index}"}, answer] for index in range(8)]
    rows.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))

    def make(**changes: Any) -> TuneConfig:  # noqa: ANN401
        values: dict[str, Any] = {
            "model": str(model),
            "data": {"path": rows},
            "draft_layer": True,
            "output": tmp_path / "tuned",
            "max_steps": 6,
            "batch_size": 4,
            "save_steps": 3,
            "device": "cpu",
        }
        return TuneConfig(**{**values, **changes})

    return make


def test_other_weights_in_the_same_place_are_refused(
    model: Path, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(settings(), 4, monkeypatch)
    original = shutil.copy(model / "model.safetensors", tmp_path / "original")
    tensors = load_file(original)
    changed = {name: tensor * 1.01 for name, tensor in tensors.items()}
    save_file(changed, model / "model.safetensors", {"format": "pt"})
    with pytest.raises(UsageError, match="the weights of the model are not those with which"):
        tune(settings(resume=True))
    shutil.copy(original, model / "model.safetensors")
    assert tune(settings(resume=True)) is not None


def test_another_start_layer_in_the_same_place_is_refused(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = tmp_path / "first", tmp_path / "other"
    tune(settings(output=first, max_steps=1))
    tune(settings(output=other, max_steps=2))
    interrupt(settings(start_layer=first), 4, monkeypatch)
    with pytest.raises(UsageError, match="the weights of the draft layer are not those with which"):
        tune(settings(start_layer=other, resume=True))
    assert tune(settings(start_layer=first.rename(tmp_path / "moved"), resume=True)) is not None


def test_equal_inputs_in_another_place_are_resumed(
    model: Path, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(settings(), 4, monkeypatch)
    moved = {"model": str(model.rename(tmp_path / "moved"))}
    rows = shutil.copy(tmp_path / "rows.jsonl", tmp_path / "moved.jsonl")
    lines = rows.read_text().splitlines(keepends=True)
    rows.write_text("".join(reversed(lines)))
    with pytest.raises(UsageError, match="the tokens of the data are not those with which"):
        tune(settings(**moved, data={"path": rows}, resume=True))
    rows.write_text("".join(lines))
    report = tune(settings(**moved, data={"path": rows}, validation=rows, resume=True))
    assert report.drafts.tuned is not None, "of held-out texts, which don't affect the result"


def test_chats_keep_the_date_on_which_the_run_began(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(settings(), 4, monkeypatch)
    path = tmp_path / ".tuned.tuning" / "options.json"
    text = path.read_text()
    options = json.loads(text)
    began = datetime.fromisoformat(options["began"])
    for other, problem in (
        (
            (began - timedelta(days=1)).isoformat(),
            "the tokens of the data are not those with which",
        ),
        ("yesterday", "began is 'yesterday', which is no time"),
    ):
        path.write_text(json.dumps(options | {"began": other}))
        with pytest.raises(UsageError, match=problem):
            tune(settings(resume=True))
    path.write_text(text)
    assert tune(settings(resume=True)) is not None


def test_a_resumed_run_may_save_and_log_at_new_intervals(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(settings(logging_steps=3), 4, monkeypatch)
    interrupt(settings(resume=True, save_steps=1, logging_steps=1), 5, monkeypatch)
    saves = tmp_path / ".tuned.tuning" / "checkpoints"
    assert {save.name for save in saves.iterdir()} == {"checkpoint-4", "checkpoint-5"}
    report = tune(settings(resume=True, logging_steps=1))
    assert [one.step for one in report.losses] == [1, 3, 4, 5, 6]


def test_a_resumed_run_ends_as_an_undisturbed_one(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tune(settings(logging_steps=2))
    weights = (tmp_path / "tuned" / "draft_layer.safetensors").read_bytes()
    interrupt(settings(logging_steps=2, force=True), 5, monkeypatch)
    resumed = tune(settings(logging_steps=2, force=True, resume=True))
    assert resumed.losses == whole.losses
    assert (tmp_path / "tuned" / "draft_layer.safetensors").read_bytes() == weights


def test_a_run_stopped_by_a_signal_publishes_nothing(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        interrupt(settings(), Signal(signal.SIGTERM, 1), monkeypatch)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not (tmp_path / "tuned").exists()
    assert tune(settings(resume=True)).steps == 6
