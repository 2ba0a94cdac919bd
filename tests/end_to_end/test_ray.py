"""The Ray example writes the texts of `generate`, file by file."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from page_blocks import ROOT

from skipdec import Generator, RequestOutput, RunningBatch, SamplingParams

PROMPTS = ["Ant", "The Mill is", "a", "Cotto \u2028 2", "x" * 30, "y"]
GREEDY = SamplingParams(temperature=0, max_tokens=5)
EXAMPLE = ROOT / "examples" / "ray" / "continue_files.py"


@pytest.fixture(scope="module")
def bundle(int8_bundle: Path) -> Path:
    return int8_bundle


def write_lines(path: Path) -> None:
    rows = [{"prompt": f"{prompt} {path.stem}", "id": prompt} for prompt in PROMPTS]
    rows.insert(1, {"prompt": "too long" * 50, "id": "long"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def require_continued(bundle: Path, path: Path) -> None:
    rows = [json.loads(line) for line in path.open()]
    refused = rows.pop(1)
    with Generator.open(bundle, threads=1) as generator:
        outputs = generator.generate([f"{prompt} {path.stem}" for prompt in PROMPTS], GREEDY)
    assert [row["text"] for row in rows] == [output.outputs[0].text for output in outputs]
    assert [row["id"] for row in rows] == PROMPTS
    assert {row["error"] for row in rows} == {""}
    assert (refused["id"], refused["text"]) == ("long", "")
    assert "prompt" in refused["error"]


def load_example() -> Any:  # noqa: ANN401  (a module)
    spec = importlib.util.spec_from_file_location("continue_files", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def test_an_actor_continues_a_file(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    write_lines(tmp_path / "1.jsonl")
    actor = load_example().FileContinuer(str(bundle), str(tmp_path / "texts"), 1, 5)
    actor({"item": [str(tmp_path / "1.jsonl")]})
    require_continued(bundle, tmp_path / "texts" / "1.jsonl")


def test_a_row_that_fails_while_running_gets_an_error(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = RunningBatch.take

    def failed(batch: RunningBatch, number: int) -> RequestOutput:
        output = take(batch, number)
        (one,) = output.outputs
        return replace(
            output, outputs=(replace(one, finish_reason="error", stop_reason="not finite"),)
        )

    monkeypatch.setattr(RunningBatch, "take", failed)
    (tmp_path / "texts").mkdir()
    (tmp_path / "1.jsonl").write_text('{"prompt": "a"}\n')
    actor = load_example().FileContinuer(str(bundle), str(tmp_path / "texts"), 1, 5)
    actor({"item": [str(tmp_path / "1.jsonl")]})
    row = json.loads((tmp_path / "texts" / "1.jsonl").read_text())
    assert row == {"prompt": "a", "text": "", "error": "not finite"}


def test_files_of_equal_names_are_refused_before_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["continue_files.py", "no bundle", "a/1.jsonl", "b/1.jsonl"]
    monkeypatch.setattr(sys, "argv", [*command, "--output", str(tmp_path / "texts")])
    with pytest.raises(SystemExit):
        load_example().main()
    assert "two files have the same name" in capsys.readouterr().err
    assert not (tmp_path / "texts").exists()


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="Ray is not installed; scripts/environments/ray_data.sh brings it",
)
def test_two_actors_continue_files_and_skip_finished_ones(bundle: Path, tmp_path: Path) -> None:
    output = tmp_path / "texts"
    for number in range(4):
        write_lines(tmp_path / f"{number}.jsonl")

    def run() -> str:
        command = [sys.executable, str(EXAMPLE), str(bundle), *map(str, tmp_path.glob("*.jsonl"))]
        command += ["--output", str(output), "--max-tokens", "5"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "4 of 4 files written" in run()
    for number in range(4):
        require_continued(bundle, output / f"{number}.jsonl")
    (output / "0.jsonl").unlink()
    before = (output / "1.jsonl").stat()
    assert "1 of 4 files written" in run()
    assert (output / "1.jsonl").stat() == before
    assert "0 of 4 files written" in run()
