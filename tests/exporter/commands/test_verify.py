"""Test what ``skipdec verify`` prints, also as JSON for a damaged bundle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run
from fixture_types import Checkpoints, Exported
from hollow_bundles import write_hollow_bundle

from skipdec.runtime.schedule import ExitSchedule


@pytest.mark.usefixtures("verified_here")
def test_a_comparison_with_the_reference_is_printed(
    exported: Exported, checkpoint: Checkpoints
) -> None:
    result = run("verify", exported("pre_norm"), "--reference", checkpoint("pre_norm"))
    assert result.exit_code == 0, result.stderr
    assert "9 engines give their torch modules' results" in result.stdout
    assert "128 of 128 greedy tokens after random prompts are those of Hugging" in result.stdout


@pytest.mark.parametrize("is_whole", [True, False])
def test_json_is_also_printed_after_a_failure(tmp_path: Path, is_whole: bool) -> None:
    path = write_hollow_bundle(tmp_path / "bundle", ExitSchedule.full(12)).path
    if not is_whole:
        weights = max(path.rglob("*.onnx"))
        weights.write_bytes(weights.read_bytes() + b"x")
    result = run("verify", path, "--json")
    document = json.loads(result.stdout)
    assert (document["passed"], result.exit_code) == ((True, 0) if is_whole else (False, 1))
    if not is_whole:
        assert weights.name in str(document["error"]["problems"])
        assert weights.name in result.stderr


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["--draft-layer", "nowhere"], "draft_layer"),
        (["--ranges", "nowhere"], "ranges"),
        (["--atol", "5"], "atol"),
        (["--load-format", "dummy"], "load_format"),
    ],
)
def test_comparison_options_are_refused_without_a_reference(
    tmp_path: Path, options: list[str], name: str
) -> None:
    path = write_hollow_bundle(tmp_path / "bundle", ExitSchedule.full(12)).path
    result = run("verify", path, *options)
    assert result.exit_code == 2
    assert name.replace("_", "-") in result.stderr or f"`{name}`" in result.stderr
    assert "give --reference MODEL, or leave it out" in result.stderr
