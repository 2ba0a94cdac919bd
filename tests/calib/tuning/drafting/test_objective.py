"""Tuning full depth and a draft of its layers together makes drafts better."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from huggingface_hub import ModelCard

from skipdec.calib.tuning.config import TuneConfig
from skipdec.calib.tuning.report import TuningReport
from skipdec.calib.tuning.tuning import tune

Settings = Callable[..., TuneConfig]


def tuned(config: TuneConfig) -> TuningReport:
    report = tune(config)
    assert report is not None
    return report


def test_drafts_are_accepted_more_often_than_after_tuning_on_labels(settings: Settings) -> None:
    report = tuned(settings(draft={"layers": "ends:2"}, max_steps=60))
    drafts = report.drafts
    assert drafts is not None
    assert drafts.start is not None
    assert drafts.tuned is not None
    assert drafts.layers == (0, 3)
    assert drafts.tuned.held_of_6 > drafts.start.held_of_6 + 1
    assert report.schedule_text == "full"
    card = ModelCard.load(report.output / "README.md").text
    assert f"`ends:2`: of 6 drafts {drafts.tuned.held_of_6:.2f} hold" in card
    assert "tuned, tuned to draft for itself" in card
    assert "skip" not in card.replace("skipdec", ""), "no layer is tuned to be skipped"
    assert "| at full depth | " in card
    assert "at the schedule" not in card, "full depth is the schedule"
    assert "skipdec generate bundle --draft ends:2" in card


def test_distillation_from_the_initial_model_moves_full_depth_less(
    settings: Settings, toy_rows: Path, tmp_path: Path
) -> None:
    """Labels of foreign texts change the model much; at distillation weight 1 they do not count."""
    other = tmp_path / "other.jsonl"
    other.write_text(toy_rows.read_text().replace("is a pub", "was an inn"))
    options = {"data": {"path": other}, "draft": {"layers": "first:2"}, "max_steps": 20}
    labels = tuned(settings("labels", **options)).validation
    start = tuned(settings("start", **options, distill=1.0)).validation
    assert labels is not None
    assert start is not None
    moved = [each.tuned_at_full - each.start_at_full for each in (start, labels)]
    assert moved[1] > 0.3
    assert moved[0] < 0.7 * moved[1]


def test_adapters_are_tuned_for_drafts_too(settings: Settings) -> None:
    report = tuned(settings(draft={"layers": "ends:2"}, lora=2, max_steps=2))
    assert report.drafts is not None
    assert report.trained_parameters < report.parameters / 2
