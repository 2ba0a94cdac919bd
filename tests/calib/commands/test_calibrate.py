"""``skipdec calibrate`` writes a file for export, tables or JSON; errors come before work."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import command_line
import pytest

from skipdec.calib.calibration.config import CalibrationConfig
from skipdec.calib.calibration.plan import plan_calibration
from skipdec.calib.perplexity import loss_lines
from skipdec.exporter.config import ExportConfig
from skipdec.exporter.pipeline.exporting import plan_export
from skipdec.exporter.quantization.ranges import ActivationRanges

SMALL = ("--examples", 3, "--held-out", 2)


run = partial(command_line.run, "calibrate")


def test_export_accepts_the_written_file(model: Path, rows: Path, tmp_path: Path) -> None:
    output = tmp_path / "ranges.json"
    result = run(model, "--data", rows, "--preset", "e2e", *SMALL, "-o", output)
    assert result.exit_code == 0, result.stderr
    ranges = ActivationRanges.from_json(output.read_bytes(), "ranges.json")
    assert len(ranges.layers) == 6
    assert all(len(layer) == 4 for layer in ranges.layers.values())
    assert "layer_005" in result.stdout
    assert "static fp8" in result.stdout
    assert "3 texts for the ranges, 2 for the losses, schedule full" in result.stderr


def test_overlong_rows_shrink_both_parts_proportionally(model: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("mr,ref\n" + "name[Ant],A pub.\n" * 3 + f"name[{'B' * 60}],No.\n" * 2)
    options = ("--data", rows, "--preset", "e2e", *SMALL, "-o", tmp_path / "ranges.json")
    assert "line 5" in run(model, *options).stderr
    result = run(model, *options, *command_line.config(data={"long_prompts": "drop"}))
    assert result.exit_code == 0, result.stderr
    assert "left out, too long: 2 of 5 rows" in result.stderr
    assert "2 texts for the ranges, 1 for the losses" in result.stderr


def test_stdout_has_only_json_that_is_equal_for_equal_runs(
    model: Path, rows: Path, tmp_path: Path
) -> None:
    output = tmp_path / "ranges.json"
    options = ("--data", rows, "--preset", "e2e", *SMALL, "--schedule", "2x:horizon=8", "--json")
    ranged = (*options, "--percentile", 99, "-o", output)
    first, second = run(model, *ranged), run(model, *ranged, "--force")
    assert json.loads(first.stdout) == json.loads(second.stdout)
    report = json.loads(first.stdout)
    assert (report["percentile"], report["schedule"]) == (
        99,
        "linear:max=4,min=2,warmup=1,horizon=8",
    )
    head = report["products"][-1]
    assert head["engine"] == "head"
    assert 0 < head["range"] < head["maximum"]


def test_the_checkpoints_schedule_is_the_default(model: Path, rows: Path, tmp_path: Path) -> None:
    schedule = {
        "num_layers": 6,
        "max_exit_layer": 4,
        "min_exit_layer": 2,
        "warmup_layers": 1,
        "horizon": 5,
        "decay": "linear",
        "placement": "top",
    }
    (model / "schedule.json").write_text(json.dumps(schedule))
    options = ("--data", rows, "--preset", "e2e", *SMALL, "--json", "-q")
    result = run(model, *options, "-o", tmp_path / "ranges.json")
    assert json.loads(result.stdout)["schedule"] == "linear:max=4,min=2,warmup=1,horizon=5"
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "rows.csv, line 2: has no 'prompt', nor have 7 other rows; its columns are"),
        (("--preset", "e2e", "--schedule", "99x"), "preset 99x | does not fit 6 layers"),
        (("--preset", "e2e", "--examples", "7"), "has 8 rows; asked for 7 to observe and 2 others"),
        (("--preset", "e2e", "--percentile", "101"), "--percentile is 101.0; allowed: 100"),
        (
            ("--preset", "e2e", "--prompt-template", "x" * 80 + "{prompt}"),
            "rows.csv, line 2: the prompt has 90 tokens",
        ),
        (("--preset", "e2e", "-o", "ranges.json"), "exists; pass --force"),
        (("--preset", "e2e", "-o", "none/ranges.json"), "is not a directory; make it"),
    ],
)
def test_errors_come_before_any_work(
    options: tuple[str, ...],
    message: str,
    model: Path,
    rows: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ranges.json").write_text("kept")
    result = run(model, "--data", rows, *SMALL, "-o", "new.json", *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert (tmp_path / "ranges.json").read_text() == "kept"
    assert not (tmp_path / "new.json").exists()


@pytest.mark.parametrize("command", ["calibrate", "ngrams", "fit"])
def test_force_never_replaces_the_data(
    command: str, model: Path, text_bundle: Path, tmp_path: Path
) -> None:
    data = tmp_path / "rows.json"
    data.write_text('{"prompt": "a", "completion": "b"}\n')
    goal = ("--target-speedup", 2) if command == "fit" else ()
    source = text_bundle if command == "fit" else model
    form = command_line.config(data={"format": "jsonl"})
    result = command_line.run(command, source, "--data", data, "-o", data, "--force", *goal, *form)
    assert result.exit_code == 2
    assert "is also the data; name another file" in result.stderr
    assert "completion" in data.read_text()


@pytest.mark.parametrize(
    ("command", "mark"),
    [
        ("tune", "tuning_report.json"),
        ("round", "rounding_report.json"),
        ("evaluate", "evaluation.json"),
    ],
)
def test_force_never_deletes_the_data_with_an_older_result(
    command: str, mark: str, model: Path, text_bundle: Path, tmp_path: Path
) -> None:
    (output := tmp_path / "result").mkdir()
    (output / mark).write_text("{}")
    data = output / "rows.jsonl"
    data.write_text('{"prompt": "a", "completion": "b"}\n' * 20)
    source = text_bundle if command == "evaluate" else model
    options = ("--data", data, "-o", output, "--force", "--schedule", "full")
    result = command_line.run(command, source, *options)
    assert result.exit_code == 2
    assert f"holds what is read, {data}; choose another name" in result.stderr
    assert data.exists()


def test_texts_beyond_the_memory_limit_are_dropped_with_a_warning(
    model: Path, rows: Path, tmp_path: Path
) -> None:
    options = ("--data", rows, "--preset", "e2e", *SMALL, "--max-tokens", 90, "--json")
    result = run(model, *options, "-o", tmp_path / "ranges.json")
    assert "of 5 texts are left out, over the limit of 90 tokens" in result.stderr
    report = json.loads(result.stdout)
    assert report["tokens"] + report["loss"]["tokens"] <= 90


@pytest.mark.parametrize(
    ("command", "options"), [("calibrate", SMALL), ("round", (*SMALL[:4], "--block-size", 16))]
)
def test_cut_completions_are_reported(
    command: str, options: tuple[object, ...], model: Path, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("mr,ref\n" + f"name[Ant],{'A pub. ' * 20}\n" * 5)
    data = ("--data", rows, "--preset", "e2e", "-q", "--json", "-o", tmp_path / "output")
    result = command_line.run(command, model, *data, *options)
    assert result.exit_code == 0, result.stderr
    warning = "cut off at the maximum length: 5 of 5 completions"
    assert warning in result.stderr
    assert json.loads(result.stdout)["warnings"][-1].startswith(warning)


def test_a_length_that_only_export_can_choose_gives_no_warning(
    llama: Path, rows: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(llama.parent / "checkpoint", tmp_path / "long")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 16384}))
    data = {"path": rows, "preset": "e2e"}
    options = {"num_examples": 3, "num_held_out": 2, "output": tmp_path / "ranges.json"}
    plan = plan_calibration(CalibrationConfig(model=str(model), data=data, **options))
    assert not any("max-seq-len" in warning for warning in plan.warnings)
    exported = plan_export(ExportConfig(model=str(model))).warnings
    assert any("--max-seq-len chooses another length" in warning for warning in exported)


def test_a_loss_with_an_infinite_perplexity_is_printed() -> None:
    lines = loss_lines(1, 1, 1.0, {"static int8": 800.0})
    assert "  static int8 800.0000 (+799.0000, perplexity inf)" in lines
