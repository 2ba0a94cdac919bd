"""An evaluation writes tables, JSON, and a directory that is complete or absent."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from evaluations import SKIPPING
from reports import as_json

from skipdec.calib.evaluation import report as evaluation_files
from skipdec.calib.evaluation.config import EvaluationConfig
from skipdec.calib.evaluation.evaluation import Evaluation, evaluate
from skipdec.calib.evaluation.markdown import report_markdown, tables
from skipdec.calib.evaluation.report import report_document, write_evaluation
from skipdec.engines.errors import UsageError
from skipdec.engines.host.console import markdown_report
from skipdec.runtime.generator import Generator

DOCUMENT = {"made": "by a test"}


def test_the_document_is_strict_json_with_every_figure(evaluation: Evaluation) -> None:
    document = as_json(report_document(evaluation, threads=2))
    full, skipping = document["rows"]
    assert (document["threads"], full["device"], full["target"]) == (2, "cpu", "onnxruntime")
    assert (full["schedule"], skipping["schedule"]) == ("full", SKIPPING)
    assert (full["nominal_depth"], skipping["nominal_depth"]) == (6.0, 3.0)
    assert full["prompt_template"] == "{prompt}"
    assert skipping["metrics"].keys() == evaluation.metrics.keys()
    figure = skipping["metrics"]["perplexity"]
    assert figure["estimate"]["low"] <= figure["estimate"]["value"] <= figure["estimate"]["high"]
    assert full["metrics"]["perplexity"]["difference"] == {"value": 0, "low": 0, "high": 0}
    assert [example["prompt"]["prompt"] for example in document["examples"]] == ["ab", "cd"]


def test_undefined_figures_are_null_and_dashes(config: EvaluationConfig) -> None:
    single = evaluate(config.updated(max_tokens=1), Generator.open)
    assert math.isnan(single.rows[0].figures["realised_depth"].estimate.value)
    figure = as_json(report_document(single))["rows"][0]["metrics"]["realised_depth"]
    assert figure["estimate"]["value"] is None
    assert " | – | " in markdown_report(tables(single))


def test_tables_have_a_row_per_bundle_and_schedule(evaluation: Evaluation) -> None:
    text = markdown_report(tables(evaluation))
    assert "3 prompts of rows.jsonl, greedy, batches of 2" in text
    rows = [line for line in text.splitlines() if line.startswith("| tiny")]
    assert len(rows) == 3, "two schedules, and one difference to full depth"
    assert rows[0].startswith("| tiny | full | 6.00 | 1.00× | 1.00× |")
    headings = text.split("| --- ")[0].splitlines()[-1]
    assert headings.count("|") == rows[0].count("|")


def test_examples_are_shown_unchanged_for_each_schedule(evaluation: Evaluation) -> None:
    every = replace(evaluation, config=evaluation.config.updated(num_shown=3))
    text = report_markdown(every)
    assert "### rows.jsonl, line 4\n\nefg\n" in text
    assert "- a | third" in text
    assert text.count("| tiny | full |") == 1 + 3


def test_short_schedule_names_are_explained(config: EvaluationConfig) -> None:
    short = evaluate(config.updated(schedules=("2x",)), Generator.open)
    assert f"- `2x`, 6 layers: `{SKIPPING}`" in markdown_report(tables(short))


def test_the_directory_contains_all_files_and_nothing_else(
    evaluation: Evaluation, tmp_path: Path
) -> None:
    target = tmp_path / "results"
    names = write_evaluation(target, evaluation, DOCUMENT, force=False)
    assert names == ("evaluation.json", "evaluation.md", "pareto.png")
    assert [path.name for path in tmp_path.iterdir()] == ["results"], "no temporary files are left"
    assert json.loads((target / "evaluation.json").read_text()) == DOCUMENT
    assert (target / "pareto.png").read_bytes().startswith(b"\x89PNG")


def test_every_point_of_the_picture_has_a_label(evaluation: Evaluation, tmp_path: Path) -> None:
    with patch.object(evaluation_files, "plot") as plot:
        evaluation_files.plot_pareto(evaluation, tmp_path / "pareto.png")
    _, chart = plot.call_args.args
    labels = [text for series in chart.series for text in series.texts]
    assert len(labels) == len(evaluation.rows)
    assert any(label.startswith("full, ") for label in labels)


def test_the_picture_is_omitted_without_matplotlib(
    evaluation: Evaluation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation_files, "is_installed", lambda _: False)
    names = write_evaluation(tmp_path / "results", evaluation, DOCUMENT, force=False)
    assert names == ("evaluation.json", "evaluation.md")


def test_an_old_result_needs_force_and_is_replaced_whole(
    evaluation: Evaluation, tmp_path: Path
) -> None:
    target = tmp_path / "results"
    write_evaluation(target, evaluation, {"old": 1}, force=False)
    with pytest.raises(UsageError, match="exists; pass --force to replace it"):
        write_evaluation(target, evaluation, DOCUMENT, force=False)
    write_evaluation(target, evaluation, DOCUMENT, force=True)
    assert json.loads((target / "evaluation.json").read_text()) == DOCUMENT
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.txt").touch()
    for other in (tmp_path / "thesis", tmp_path / "thesis" / "thesis.txt"):
        with pytest.raises(UsageError, match="exists and is not an evaluation"):
            write_evaluation(other, evaluation, DOCUMENT, force=True)
    assert (tmp_path / "thesis" / "thesis.txt").exists()


def test_an_interrupted_write_leaves_the_old_result(
    evaluation: Evaluation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "results"
    write_evaluation(target, evaluation, {"old": 1}, force=False)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluation_files, "plot_pareto", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_evaluation(target, evaluation, DOCUMENT, force=True)
    assert json.loads((target / "evaluation.json").read_text()) == {"old": 1}
    monkeypatch.undo()
    write_evaluation(target, evaluation, DOCUMENT, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
