"""Every command that reads data names all bad lines before any work."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import command_line
import pytest
from fixture_types import Checkpoints
from text_bundles import STRUCTURE, add_unembedded_tokens, copy_with_tokenizer
from typer.testing import Result

from skipdec.exporter.config import ExportConfig
from skipdec.exporter.pipeline.exporting import export

Command = Callable[..., Result]


COMMANDS = ("tune", "evaluate", "fit", "calibrate", "round")


def arguments_of(name: str, bundle: Path, output: Path) -> tuple[object, ...]:
    checkpoint = bundle.parent / "checkpoint"
    return {
        "tune": ("tune", checkpoint, "--schedule", "2x", "-o", output, *CPU),
        "evaluate": ("evaluate", bundle, "-o", output),
        "fit": ("fit", bundle, "--target-speedup", "1.5", "-o", output.with_suffix(".json")),
        "calibrate": ("calibrate", checkpoint, "-o", output.with_suffix(".json"), *SAMPLE),
        "round": ("round", checkpoint, "-o", output, *SAMPLE),
    }[name]


@pytest.fixture(params=COMMANDS)
def command(request: pytest.FixtureRequest, bundle: Path, tmp_path: Path) -> Command:
    """Return ``command(data, *options)``, which runs a command and checks that nothing is left."""
    arguments = arguments_of(request.param, bundle, tmp_path / "output")

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


@pytest.fixture(scope="module")
def unembedded(checkpoint: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle with tokens beyond its embedding, next to its checkpoint."""
    directory = tmp_path_factory.mktemp("unembedded")
    source = copy_with_tokenizer(checkpoint(STRUCTURE), directory / "checkpoint")
    add_unembedded_tokens(source)
    export(ExportConfig(model=str(source), output=directory / "bundle", verify=False))
    return directory / "bundle"


@pytest.mark.parametrize("name", COMMANDS)
def test_tokens_that_the_embedding_lacks_are_named_by_line(
    name: str, unembedded: Path, tmp_path: Path
) -> None:
    data = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"{text} a", "completion": "b"} for text in ("<0>", "<299>")]
    rows.append({"prompt": "a", "completion": "<299>"})
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = arguments_of(name, unembedded, tmp_path / "output")
    sample = {"calibrate": ("--held-out", "2"), "round": ("--held-out", "2")}.get(name, ())
    result = command_line.run(*arguments, *sample, "--data", data)
    assert result.exit_code == 2, result.output
    for line in (2, 3):
        problem = rf"line {line}: the text has token \d+ \('<299>'\), beyond the 300 rows"
        assert re.search(problem, " ".join(result.stderr.split()))
    assert "line 1" not in result.stderr
