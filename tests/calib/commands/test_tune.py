"""``skipdec tune`` prints results or JSON on stdout, and problems have exit codes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import command_line
import pytest
from command_line import config

FRESH = ("--from-scratch", "layers=4,width=32,heads=2,positions=48", "--vocab-size", "300")

CPU = config(device="cpu")
E2E = ("--preset", "e2e", "--schedule", "2x", "--data")

run = partial(command_line.run, "tune")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text("mr,ref\n" + "name[Ant],Ant is a pub.\nname[Bee],Bee is a pub.\n" * 4)
    return path


def test_the_report_is_printed_as_json(rows: Path, tmp_path: Path) -> None:
    options = (*E2E, rows, *config(device="cpu", logging_steps=1), "-o", tmp_path / "tuned")
    result = run(*FRESH, *options, "--max-steps", 2, "--mixture", "full", "-q", "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["steps"] == 2
    assert sum(entry["steps"] for entry in report["schedules"]) == 2
    assert [entry["step"] for entry in report["losses"]] == [1, 2]


def test_the_summary_names_the_next_command(rows: Path, tmp_path: Path) -> None:
    result = run(*FRESH, *E2E, rows, *CPU, "--max-steps", 2, "-o", tmp_path / "tuned")
    assert f"next: skipdec export {tmp_path / 'tuned'}" in result.stdout
    assert "the median completion, in tokens" in result.stderr


def test_dropped_long_rows_are_counted(rows: Path, tmp_path: Path) -> None:
    with rows.open("a") as file:
        file.write(f"name[{'Cat ' * 60}],Cat is a pub.\n")
    dropping = config(device="cpu", data={"long_prompts": "drop"})
    result = run(*FRESH, *E2E, rows, *dropping, "--max-steps", 1, "-o", tmp_path / "tuned")
    assert result.exit_code == 0, result.stderr
    assert "left out, too long: 1 of 9 rows" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--preset", "tldr"),
            "'summary', nor have 7 other rows; its columns are 'mr', 'ref'; --preset e2e",
        ),
        (("--preset", "e2e", "--schedule", "99x"), "preset 99x | does not fit 4 layers"),
        (("--preset", "e2e", "--batch-size", "0"), "--batch-size is 0; allowed: 1 or more"),
        (
            ("--preset", "e2e", "--epochs", "1", "--max-steps", "2"),
            "--max-steps 2 are both given; leave",
        ),
        (("--preset", "e2e", "--distill", "0.5"), "--distill needs a trained model"),
        (("--preset", "e2e", "-o", "/dev/null/out"), "lies below /dev/null, which is not a direct"),
    ],
)
def test_usage_errors_come_before_work(
    options: tuple[str, ...], message: str, rows: Path, tmp_path: Path
) -> None:
    result = run(*FRESH, "--data", rows, "--schedule", "2x", "-o", tmp_path / "out", *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.csv"]


def test_a_draft_layer_reads_three_states_by_default(
    model: Path, rows: Path, tmp_path: Path
) -> None:
    data = ("--data", rows, "--preset", "e2e", "--validation", rows, *CPU)
    output = tmp_path / "draft"
    result = run(model, "--draft-layer", *data, "--max-steps", 2, "-o", output)
    assert result.exit_code == 0, result.stderr
    assert (
        "a draft layer that reads states after 2, 3, 6 layers; the model is frozen" in result.stderr
    )
    assert "held-out loss" not in result.stdout, "full depth is unchanged"
    export = f"next: skipdec export {model} --draft-layer {output} --quantize int8"
    assert f"{export}, then run the bundle with --draft trained" in result.stdout
    assert json.loads((output / "draft_layer.json").read_text())["reads"] == [2, 3, 6]


def test_a_model_tuned_to_draft_for_itself_prints_how_to_run_it(
    model: Path, rows: Path, tmp_path: Path
) -> None:
    data = ("--data", rows, "--preset", "e2e", "--validation", rows, *CPU)
    output = tmp_path / "drafts"
    result = run(model, "--draft", "ends:2", *data, "--max-steps", 1, "-o", output)
    assert result.exit_code == 0, result.stderr
    assert "drafts ends:2: layers 0, 5" in result.stderr
    held_out = next(line for line in result.stdout.splitlines() if "held-out loss" in line)
    assert held_out.endswith("at full depth")
    assert "at the schedule" not in held_out
    export = f"next: skipdec export {output} --quantize int8"
    assert f"{export}, then run the bundle with --draft ends:2" in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--draft-layer", "--lora", "2"), "--lora trains the model, which --draft-layer"),
        (("--draft", "ends:9"), "9 layers of 6; allowed: 1 to 5"),
        (("--draft", "end:3"), "did you mean 'ends'?"),
        ((*config(draft={"weight": 0.5}), "--schedule", "full"), "--draft is missing; give it"),
        (("--schedule", "2x", "--vocab-size", "500"), "--vocab-size needs --from-scratch"),
    ],
)
def test_options_that_exclude_drafts_are_refused_by_name(
    options: tuple[str, ...], message: str, model: Path, rows: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    result = run(model, "--data", rows, "--preset", "e2e", "-o", output, *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not output.exists()


@pytest.mark.parametrize(
    ("save_steps", "advice"),
    [(1, "run the command again with --resume"), (9, "nothing was saved yet")],
)
def test_ctrl_c_advises_to_resume_only_after_a_save(
    save_steps: int, advice: str, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def advance(self: object, item: str = "", steps_done: int = 1) -> None:
        steps.extend([item] * steps_done)
        if steps.count("") == 3:  # loading and two steps
            raise KeyboardInterrupt

    monkeypatch.setattr("skipdec.engines.host.progress.ConsoleProgress.advance", advance)
    saving = config(device="cpu", save_steps=save_steps)
    options = (*E2E, rows, *saving, "-q", "-o", tmp_path / "tuned")
    result = run(*FRESH, *options, "--max-steps", 4)
    assert result.exit_code == 130
    assert advice in result.stderr
    assert (tmp_path / ".tuned.tuning").exists() == (save_steps == 1)


@pytest.mark.parametrize(("rank", "times"), [("0", 1), ("1", 0)])
def test_only_the_first_torchrun_process_gives_advice(
    rank: str, times: int, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr("skipdec.calib.tuning.tuning.plan_tuning", interrupted)
    result = run(*FRESH, "--data", rows, "--schedule", "2x", "-o", tmp_path / "tuned")
    assert result.exit_code == 130
    assert result.stderr.count("nothing was saved yet") == times
