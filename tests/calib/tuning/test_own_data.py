"""Tune on texts that the model writes itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attack.processes import child_processes
from command_line import run
from recorded_events import RecordedEvents
from writing_models import POSITIONS

from skipdec.calib.data import self_written
from skipdec.calib.tuning.config import TuneConfig
from skipdec.calib.tuning.plan import plan_tuning
from skipdec.calib.tuning.tuning import tune
from skipdec.engines.errors import ConfigurationError, SkipDecError, UsageError

Settings = Callable[..., TuneConfig]


@pytest.fixture
def settings(writing_model: Path, tmp_path: Path) -> Settings:
    """Return ``settings(**changes)``: two draft-layer steps on 40 texts, to tmp_path/tuned."""

    def make(**changes: Any) -> TuneConfig:  # noqa: ANN401
        values = {
            "model": str(writing_model),
            "data": {"path": "self:40"},
            "draft_layer": True,
            "output": tmp_path / "tuned",
            "max_steps": 2,
            "batch_size": 4,
        }
        return TuneConfig(**{**values, **changes})

    return make


def test_the_template_process_ends_once_chats_are_read(settings: Settings, tmp_path: Path) -> None:
    chats = tmp_path / "chats.jsonl"
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    chats.write_text(json.dumps({"messages": turns}) + "\n")
    others = child_processes()
    assert plan_tuning(settings(data={"path": chats}, validation=chats)).validation is not None
    assert not child_processes() - others


def test_a_draft_layer_is_tuned_on_texts_written_once(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = RecordedEvents()
    report = tune(settings(), events)
    assert report is not None
    assert report.data.examples == 38
    assert report.drafts is not None
    assert report.drafts.tuned is not None
    assert report.drafts.tuned.texts == 2, "of held-out prompts"
    assert events.counts["writing texts"] == events.totals["writing texts"] == 40
    assert events.totals["writing"] is None
    assert f"data in {tmp_path / 'tuned.self.jsonl'}, written by" in events.summary
    written = (tmp_path / "tuned.self.jsonl").read_text().splitlines()
    assert len(written) == 40
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"tuned", "tuned.self.json", "tuned.self.jsonl"}

    with (tmp_path / "tuned.self.jsonl").open("a") as file:
        file.write('{"index": 99, "mess')  # as a killed run leaves the file
    monkeypatch.setattr(self_written, "write_own_texts", None)
    plan = plan_tuning(settings(force=True, data={"path": "self:30"}))
    assert len(plan.data.examples) == 29
    tokenizer = plan.start.open_tokenizer()
    chat = json.loads(written[0])["messages"]
    read = plan.data.examples[0]
    end = tokenizer.ids_of_special_tokens["<|im_end|>"]
    answer = [*tokenizer.encode_plain(chat[1]["content"]), end]
    assert [*read.completion_token_ids] == answer, "the loss is on the answer only"
    rows = tmp_path / "rows.jsonl"
    rows.write_text(written[0] + "\n")
    plan = plan_tuning(settings(force=True, validation=rows))
    assert plan.validation is not None
    assert (len(plan.data.examples), len(plan.validation.examples)) == (40, 1)


def test_the_command_tunes_a_whole_model(writing_model: Path, tmp_path: Path) -> None:
    arguments = ["--data", "self:20", "--max-length", "32", "--schedule", "constant:max=1,warmup=0"]
    options = ["--distill", "1", "--max-steps", "2", "-o", str(tmp_path / "tuned")]
    result = run("tune", str(writing_model), *arguments, *options)
    assert "held-out loss (1 example)" in result.output
    facts = json.loads((tmp_path / "tuned.self.json").read_text())
    assert (facts["max_length"], facts["seed"]) == (32, 0)
    assert (tmp_path / "tuned" / "config.json").is_file()


def base_of(model: Path, base: Path) -> Path:
    """Link the files of ``model``, except for its chat template, to a new checkpoint."""
    base.mkdir()
    for path in model.iterdir():
        if path.name != "chat_template.jinja":
            (base / path.name).symlink_to(path)
    return base


def test_problems_are_found_before_anything_is_written(
    settings: Settings, tmp_path: Path, writing_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_written, "write_own_texts", None)
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"draft_layer": False, "schedule": "constant:max=9"}, "is 9; allowed"),
        ({"max_length": POSITIONS + 1}, f"is {POSITIONS + 1}; allowed"),
        ({"max_length": 17}, "is 17; allowed: 18 or more"),
        ({"validation": tmp_path / "missing.jsonl"}, r"^validation data .* does not exist"),
    )
    for changes, problem in wrong:
        with pytest.raises(SkipDecError, match=problem):
            plan_tuning(settings(**changes))
    with monkeypatch.context() as patch:
        patch.setenv("WORLD_SIZE", "2")
        with pytest.raises(UsageError, match="is written by one process; run the command without"):
            plan_tuning(settings())
    base = base_of(writing_model, tmp_path / "base")
    (base / "prompt_template.json").write_text('{"prompt_template": "{prompt} ="}')
    with pytest.raises(UsageError, match="was tuned with the prompt template"):
        plan_tuning(settings(model=str(base)))
    with pytest.raises(UsageError, match="is 2; allowed: 3 or more"):
        plan_tuning(settings(model=str(base_of(writing_model, tmp_path / "plain")), max_length=2))
    thoughts = base_of(writing_model, tmp_path / "thoughts")
    text = (writing_model / "chat_template.jinja").read_text().replace("a {% endif", "a < {% endif")
    (thoughts / "chat_template.jinja").write_text(text)
    with pytest.raises(UsageError, match="begins an answer in another way than it ends a prompt"):
        plan_tuning(settings(model=str(thoughts)))
    assert not list(tmp_path.glob("*.self.*"))


def test_only_trained_models_write_and_only_training_data(settings: Settings) -> None:
    fresh = {"model": None, "draft_layer": False, "schedule": "full"}
    with pytest.raises(ConfigurationError, match="is self:40, which a trained model writes"):
        settings(**fresh, from_scratch="layers=2,width=32,heads=2")
    with pytest.raises(ConfigurationError, match="validation is self; give a file, or leave it"):
        settings(validation="self")
