"""``skipdec evaluate`` writes tables, JSON and files; errors come before work."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path

import pytest
from command_line import config, run, run_process
from evaluations import SKIPPING

from skipdec.calib.evaluation import report

pytestmark = pytest.mark.usefixtures("own_thread_pools")

SMALL = ["--max-tokens", "5", "--batch-size", "2", "--threads", "1", "--seconds", "0"]
SMALL += config(resamples=10)


def test_tables_go_to_stdout_and_files_to_the_directory(
    bundle: Path, data: Path, tmp_path: Path
) -> None:
    output = tmp_path / "results"
    command = ("evaluate", f"tiny={bundle}", "--data", data, "-o", output, *SMALL)
    result = run(*command)
    assert result.exit_code == 0, result.stderr
    assert re.search(rf"tiny +{re.escape(SKIPPING)} +3\.00 ", result.stdout)
    assert "wrote" in result.stderr
    again = run(*command, "--force", "-q")
    assert again.exit_code == 0
    assert not again.stderr
    assert SKIPPING in again.stdout
    assert (output / "evaluation.md").read_text().startswith("# Evaluation")


def test_tables_are_printed_although_the_disk_is_full(
    bundle: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "results")

    monkeypatch.setattr(report, "write_file", full)
    output = tmp_path / "results"
    result = run("evaluate", f"tiny={bundle}", "--data", data, "-o", output, *SMALL)
    assert (result.exit_code, "results | no space left" in result.stderr) == (1, True)
    assert re.search(rf"tiny +{re.escape(SKIPPING)} +3\.00 ", result.stdout)
    assert not output.exists()


def test_stdout_has_only_json(bundle: Path, data: Path) -> None:
    arguments = ["--schedule", "2x", "--schedule", "3x", "--limit", "2", "--json"]
    result = run_process("evaluate", bundle, "--data", data, *arguments, *SMALL)
    document = json.loads(result.stdout)
    assert [row["schedule"] for row in document["rows"]] == ["full", "2x", "3x"]
    assert (document["num_prompts"], document["threads"]) == (2, 1)


def test_a_text_is_scored_by_position(bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("the cat sat on the mat and the dog sat by the cat " * 3)
    options = ("--score-only", "--by-position", "--threads", 1)
    passages = config(data={"passage_words": "2+6"}, resamples=10)
    result = run("evaluate", bundle, "--data", path, *options, *passages)
    assert result.exit_code == 0, result.stderr
    assert "references scored, no texts generated" in result.stdout
    assert re.search("schedule +0 +1–7 +8–15 ", result.stdout)


def test_errors_come_before_any_work(bundle: Path, data: Path, tmp_path: Path) -> None:
    for arguments, message in (
        (["--schedule", "9x"], "largest possible: 3x"),
        (["--force"], "evaluate | --force needs --output"),
        (["--preset", "e2e"], "rows.jsonl, line 1: has no 'mr'"),
        (["-o", data.parent], f"{data.parent} | exists and is not an evaluation"),
        (config(data={"passage_words": "1+1"}), "only a text is cut into passages"),
    ):
        command = ["evaluate", bundle, "--data", data, *arguments]
        result = run(*command)
        assert result.exit_code == 2, arguments
        assert message in result.stderr
        assert not result.stdout


def test_bundle_and_report_may_be_in_the_home_directory(
    bundle: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "tiny").symlink_to(bundle)
    (tmp_path / "taken").touch()
    named = run("evaluate", "tiny=~/tiny", "~/tiny", "--data", data, "--schedule", "9x")
    assert named.stderr.count("largest possible: 3x") == 2
    taken = run("evaluate", "~/tiny", "--data", data, "--output=~/taken")
    assert "taken | exists and is not an evaluation" in taken.stderr
