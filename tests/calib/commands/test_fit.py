"""``skipdec fit`` writes a schedule for other commands, tables or JSON; errors come first."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command_line import config, run, run_process

from skipdec.engines.bundle import EngineBundle
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.text import parse_schedule

pytestmark = pytest.mark.usefixtures("own_thread_pools")

SMALL = ["--placement", "top", "--decay", "linear", "--budget", "8"]
SMALL += config(space={"warmups": [1]})
SMALL += ["--threads", "1", "--speedup-of", "steps", "--seconds", "0"]


@pytest.fixture(scope="module")
def written(bundle: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory with the output of one fit, run in its own process."""
    directory = tmp_path_factory.mktemp("fit")
    arguments = ["--data", data, "--target-speedup", "1.15", *SMALL]
    files = ["-o", directory / "schedule.json", "--plot", directory / "front.svg"]
    result = run_process("fit", bundle, *arguments, *files)
    assert result.returncode == 0, result.stderr
    (directory / "stdout").write_text(result.stdout)
    return directory


def test_tables_go_to_stdout(written: Path) -> None:
    text = (written / "stdout").read_text()
    for part in (
        "Pareto front",
        "chosen: ",
        "horizon 10 (median completion",
    ):
        assert part in text
    assert (written / "front.svg").read_text().startswith("<?xml")


def test_other_commands_accept_the_written_schedule(written: Path, bundle: Path) -> None:
    path = written / "schedule.json"
    schedule = parse_schedule(str(path), num_layers=6)
    options = ("-p", "ab", "--schedule", path, "--max-tokens", "3", "--json")
    generated = run("generate", bundle, *options)
    assert generated.exit_code == 0, generated.stderr
    assert str(schedule.budget(0)) in generated.stdout


def test_the_schedule_can_be_set_on_a_bundle(written: Path, bundle: Path, tmp_path: Path) -> None:
    path = written / "schedule.json"
    copy = shutil.copytree(bundle, tmp_path / "bundle")
    result = run("schedule", "set", copy, path)
    assert result.exit_code == 0, result.output
    fitted = parse_schedule(str(path), num_layers=6)
    assert ExitSchedule.from_document(EngineBundle.open(copy).schedule_document) == fitted


def test_stdout_has_only_json(bundle: Path, data: Path) -> None:
    result = run("fit", bundle, "--data", data, "--max-loss", "+100", *SMALL, "--json")
    document = json.loads(result.stdout)
    assert (document["num_scored"], document["threads"]) == (8, 1)
    assert document["prompt_template"] == "{prompt}"
    assert document["config"]["max_loss"] == "+100"


def test_cut_completions_are_reported(bundle: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": "a", "completion": "b" * 200}) + "\n")
    result = run("fit", bundle, "--data", rows, "--max-loss", "+100", *SMALL, "--json")
    assert "cut off at the maximum length: 1 of 1 completions" in result.stderr
    assert json.loads(result.stdout)["num_truncated"] == 1


def test_an_unreachable_goal_fails_and_writes_nothing(
    bundle: Path, data: Path, tmp_path: Path
) -> None:
    output = tmp_path / "schedule.json"
    goal = ("--max-loss", "0.001", "-o", output)
    result = run("fit", bundle, "--data", data, *goal, *SMALL)
    assert result.exit_code == 1, result.stderr
    assert "can't be met: the lowest loss" in result.stderr
    assert not output.exists()
    assert not result.stdout


def test_outputs_may_be_in_the_home_directory(
    bundle: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("schedule.json", "front.png"):
        (tmp_path / name).touch()
    files = ["--output=~/schedule.json", "--plot=~/front.png"]
    result = run("fit", bundle, "--data", data, "--target-speedup", "2", *files)
    assert result.exit_code == 2
    assert result.stderr.count("exists; pass --force to replace it") == 2


def test_errors_come_before_any_work(bundle: Path, data: Path, tmp_path: Path) -> None:
    existing = tmp_path / "schedule.json"
    existing.write_text("{}")
    goal = ["--target-speedup", "2"]
    for arguments, message in (
        ([], "neither was given; give --target-speedup or --max-loss"),
        ([*goal, "--max-loss", "1"], "both were given"),
        ([*goal, "--force"], "fit | --force needs --output or --plot"),
        ([*goal, "-o", existing], "exists; pass --force to replace it"),
        ([*goal, "-o", tmp_path / "none" / "s.txt"], "2 problems"),
        ([*goal, "--plot", tmp_path / "front.gif"], "allowed: .png, .svg"),
        ([*goal, "--speedup-of", "mixed", "--slots", "70000"], "--slots is 70000; allowed: 65536"),
        ([*goal, "--preset", "e2e"], "rows.jsonl, line 1: has no 'mr'"),
        ([*goal, "--decay", "lin"], "--decay is 'lin'; did you mean 'linear'? allowed: linear, "),
    ):
        command = ["fit", bundle, "--data", data, *arguments]
        result = run(*command)
        assert result.exit_code == 2, (arguments, result.stderr)
        assert message in result.stderr
        assert "Traceback" not in result.stderr
    assert existing.read_text() == "{}"
