"""The example of Ray writes the texts that `generate` gives, file by file."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from http_servers import export_tiny
from page_blocks import ROOT
from text_bundles import STRUCTURE

from skipdec import Generator, SamplingParams

PROMPTS = ["Ant", "The Mill is", "a", "Cotto \u2028 2", "x" * 30, "y"]
GREEDY = SamplingParams(temperature=0, max_tokens=5)
EXAMPLE = ROOT / "examples" / "ray" / "continue_files.py"


@pytest.fixture(scope="module")
def bundle(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_tiny(checkpoint(STRUCTURE), tmp_path_factory.mktemp("rows"))


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


def test_an_actor_continues_a_file(bundle: Path, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("continue_files", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    (tmp_path / "texts").mkdir()
    write_lines(tmp_path / "1.jsonl")
    actor = example.FileContinuer(str(bundle), str(tmp_path / "texts"), 1, 5)
    actor({"item": [str(tmp_path / "1.jsonl")]})
    require_continued(bundle, tmp_path / "texts" / "1.jsonl")


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="Ray is not installed; scripts/environments/ray_data.sh brings it",
)
def test_two_actors_continue_files_and_finished_ones_are_left_alone(
    bundle: Path, tmp_path: Path
) -> None:
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
