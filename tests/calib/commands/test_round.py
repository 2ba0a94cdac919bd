"""``skipdec round`` writes a checkpoint and JSON, and replaces only its own results."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import command_line
import pytest

from skipdec.exporter.checkpoint.checkpoint import open_checkpoint
from skipdec.exporter.config import CheckpointSource

SMALL = ("--examples", 3, "--held-out", 2, "--block-size", 16, "--preset", "e2e")


run = partial(command_line.run, "round")


def test_the_result_has_tokenizer_schedule_and_report(
    model: Path, rows: Path, tmp_path: Path
) -> None:
    output = tmp_path / "new" / "rounded"
    result = run(model, "--data", rows, *SMALL, "--schedule", "2x:horizon=8", "-o", output)
    assert result.exit_code == 0, result.stderr
    opened = open_checkpoint(CheckpointSource(model=str(output)))
    assert opened.tokenizer_json == (model / "tokenizer.json").read_bytes()
    assert opened.schedule is not None
    assert opened.schedule.horizon == 8
    assert json.loads((output / "rounding_report.json").read_text())["block_size"] == 16
    assert "layer_005" in result.stdout
    assert "int4 to nearest" in result.stdout
    assert "--target onnxruntime --quantize int4 --block-size 16" in result.stdout
    assert "blocks of 16, 3 texts to round on, 2 for the losses" in result.stderr
    assert [path.name for path in output.parent.iterdir()] == ["rounded"]
    assert len({path.stat().st_mode for path in output.iterdir()}) == 1, "equal permissions"


def test_equal_runs_are_equal_and_force_replaces_only_rounded_results(
    model: Path, rows: Path, tmp_path: Path
) -> None:
    options = (model, "--data", rows, *SMALL, "--json", "-q", "-o", tmp_path / "rounded")
    first = run(*options)
    before = {path.name: path.read_bytes() for path in (tmp_path / "rounded").iterdir()}
    assert "exists; pass --force" in run(*options).stderr
    second = run(*options, "--force")
    assert json.loads(first.stdout) == json.loads(second.stdout)
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "rounded").iterdir()}
    kept = run(*options[:-1], model, "--force")
    assert "exists and is not a rounded checkpoint" in kept.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--block-size", "24"), "--block-size is 24; allowed: 16, 32"),
        (("--damping", "0"), "--damping is 0.0; allowed: above 0"),
        (("--target", "tensorrt", "--block-size", "64"), "blocks of 64 do not divide; choose"),
        (("-o", "model"), "exists and is not a rounded checkpoint"),
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
    before = sorted(path.name for path in tmp_path.rglob("*"))
    result = run(model, "--data", rows, *SMALL, "-o", "new", *options)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
