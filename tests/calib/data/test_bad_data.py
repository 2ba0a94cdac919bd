"""Every command that reads data names all bad lines before doing anything else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import command_line
import pytest
from typer.testing import Result

Command = Callable[..., Result]


@pytest.fixture(params=["tune", "evaluate", "fit", "calibrate", "round"])
def command(request: pytest.FixtureRequest, bundle: Path, tmp_path: Path) -> Command:
    """Return ``command(data, *options)``, which runs a command and checks that nothing is left."""
    output = tmp_path / "output"
    checkpoint = bundle.parent / "checkpoint"
    arguments = {
        "tune": ("tune", checkpoint, "--schedule", "2x", "-o", output, *CPU),
        "evaluate": ("evaluate", bundle, "-o", output),
        "fit": ("fit", bundle, "--target-speedup", "1.5", "-o", output.with_suffix(".json")),
        "calibrate": ("calibrate", checkpoint, "-o", output.with_suffix(".json"), *SAMPLE),
        "round": ("round", checkpoint, "-o", output, *SAMPLE),
    }[request.param]

    def run(data: Path, *options: str) -> Result:
        before = sorted(tmp_path.iterdir())
        result = command_line.run(*arguments, "--data", data, *options)
        assert result.exit_code == 2, result.output
        assert sorted(tmp_path.iterdir()) == before
        return result

    return run


CPU = command_line.config(device="cpu")
SAMPLE = ("--examples", "1", "--held-out", "1")


def test_bad_rows_are_named_by_line(command: Command, tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    rows = [
        json.dumps({"prompt": "a", "completion": "fine"}),
        json.dumps({"prompt": "a", "text": "of another column"}),
        json.dumps({"prompt": "a", "completion": " "}),
        '{"prompt": "a", "completion": ',
        json.dumps({"prompt": "\ud83d", "completion": "half a pair"}),
        '{"prompt": "a", "completion": "b", "completion": "c"}',
    ]
    data.write_text("\n".join(rows))
    stderr = command(data).stderr
    for problem in (
        "rows.jsonl, line 2: has no 'completion'; its columns are 'prompt', 'text'",
        "rows.jsonl, line 3: 'completion' is empty",
        "rows.jsonl, line 4: is not JSON",
        "rows.jsonl, line 5: 'prompt' holds half of a surrogate pair",
        "rows.jsonl, line 6: has the key 'completion' twice in one object",
    ):
        assert problem in stderr


@pytest.mark.parametrize(
    ("command", "schedule"),
    [
        ("tune", "--schedule=step:max=4,min=2,steps=3"),
        ("evaluate", "--schedule=step:max=4,min=2,steps=3"),
        ("calibrate", "--schedule=step:max=4,min=2,steps=3"),
        ("round", "--schedule=step:max=4,min=2,steps=3"),
        ("fit", "--decay=step:steps=3"),
    ],
    indirect=["command"],
)
def test_a_good_schedule_is_not_blamed_for_bad_rows(
    command: Command, schedule: str, tmp_path: Path
) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text('{"prompt": "a"}\n')
    stderr = command(data, schedule).stderr
    assert "rows.jsonl, line 1" in stderr
    assert "steps" not in stderr
