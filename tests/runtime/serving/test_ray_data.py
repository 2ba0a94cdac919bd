"""Rows of a dataset and lines of files get the texts that `generate` gives them."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from http_servers import export_tiny
from page_blocks import blocks, run_python
from text_bundles import STRUCTURE

from skipdec import Generator, SamplingParams, UsageError
from skipdec.engines.host.installation import missing_modules
from skipdec.engines.kernels.library import find_library
from skipdec.runtime.serving.ray_data import (
    FileContinuer,
    PredictorConfig,
    SkipDecPredictor,
    continue_files,
)

PROMPTS = ["Ant", "The Mill is", "a", "Cotto \u2028 2", "x" * 30, "y"]
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=7)
EXAMPLE = Path(__file__).parents[3] / "examples" / "ray" / "continue_files.py"

needs_ray = pytest.mark.skipif(
    bool(missing_modules("ray")),
    reason="Ray is not installed; scripts/environments/ray_data.sh brings it",
)


@pytest.fixture(scope="module")
def bundle(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_tiny(checkpoint(STRUCTURE), tmp_path_factory.mktemp("rows"))


def predictor(bundle: Path, **options: object) -> SkipDecPredictor:
    config = PredictorConfig(bundle=bundle, params=PARAMS, max_batch_size=2, **options)
    return SkipDecPredictor(config)


@pytest.mark.usefixtures("own_thread_pools")
def test_a_batch_of_rows_gets_the_texts_of_generate_and_keeps_its_columns(bundle: Path) -> None:
    found = predictor(bundle, schedule="full")({"prompt": np.array(PROMPTS), "id": np.arange(6)})
    with Generator.open(bundle, threads=1) as generator:
        outputs = generator.generate(PROMPTS, PARAMS, schedule="full")
    assert found["text"] == [output.outputs[0].text for output in outputs]
    assert found["token_ids"] == [list(output.outputs[0].token_ids) for output in outputs]
    assert found["schedule"] == [output.schedule for output in outputs]
    assert found["id"].tolist() == list(range(6))
    assert found["error"] == [""] * 6


@pytest.mark.usefixtures("own_thread_pools")
@pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")
def test_rows_with_drafts_get_the_texts_without(bundle: Path) -> None:
    batch = {"prompt": PROMPTS}
    expected = predictor(bundle)(batch)
    drafting = predictor(bundle, draft="own,adapt=no")
    for _ in range(2):  # the second time with n-grams of the first
        assert drafting(batch) == expected
    with pytest.raises(UsageError, match="draft 'onw' is unknown; did you mean 'own'"):
        PredictorConfig(bundle=bundle, draft="onw")


@pytest.mark.usefixtures("own_thread_pools")
def test_a_row_that_cannot_run_ends_no_other(bundle: Path) -> None:
    found = predictor(bundle, prompt_column="ids")({"ids": [[5, 6], [999], [7]], "row": [0, 1, 2]})
    assert [bool(error) for error in found["error"]] == [False, True, False]
    assert "999" in found["error"][1]
    assert [len(ids) for ids in found["token_ids"]] == [7, 0, 7]


@pytest.mark.usefixtures("own_thread_pools")
def test_columns_that_are_named_as_fields_say_how_a_row_is_continued(bundle: Path) -> None:
    batch = {
        "prompt": np.array(["Ant"] * 5),
        "max_tokens": np.array([3.0, 5.0, np.nan, 0.0, 2.0]),  # as pandas has integers with gaps
        "schedule": np.array(["full", None, None, None, "9y"], dtype=object),
        "author": np.array(["x"] * 5),
    }
    found = predictor(bundle)(batch)
    assert [len(ids) for ids in found["token_ids"]] == [3, 5, 7, 0, 0]
    assert found["schedule"][0] == "full" != found["schedule"][1]
    assert "max_tokens is 0" in found["error"][3]
    assert "'9y'" in found["error"][4]


@pytest.mark.usefixtures("own_thread_pools")
def test_lines_of_a_file_are_those_of_generate(bundle: Path, tmp_path: Path) -> None:
    lines = [{"max_tokens": 3}, {"max_token": 3}, {"n": 2}]
    text = "\n".join(json.dumps({"prompt": "Ant"} | line) for line in lines)
    (tmp_path / "in.jsonl").write_text(text)
    config = PredictorConfig(bundle=bundle, params=PARAMS, max_batch_size=2)
    paths = {"input": [str(tmp_path / "in.jsonl")], "output": [str(tmp_path / "out.jsonl")]}
    FileContinuer(config)(paths)
    good, typo, several = map(json.loads, (tmp_path / "out.jsonl").open())
    assert (good["prompt"], len(good["token_ids"]), good["error"]) == ("Ant", 3, "")
    assert typo["line"] == 2
    assert "did you mean 'max_tokens'?" in typo["error"]
    assert "n 2; allowed: 1" in several["error"]


@pytest.mark.usefixtures("own_thread_pools")
def test_what_is_not_allowed_is_said(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'max_token' is unknown; did you mean 'max_tokens'"):
        predictor(bundle)({"prompt": PROMPTS, "max_token": [3] * 6})
    config = PredictorConfig(bundle=bundle, prompt_column="text")
    with pytest.raises(UsageError, match="a line of a file has its 'prompt'"):
        continue_files([], tmp_path, config, actors=1)
    with pytest.raises(UsageError, match="logprobs 1; allowed: none"):
        PredictorConfig(bundle=bundle, params=SamplingParams(logprobs=1))
    with pytest.raises(UsageError, match="n 2; allowed: 1"):
        PredictorConfig(bundle=bundle, params=SamplingParams(n=2))
    with pytest.raises(UsageError, match="the rows have: text"):
        predictor(bundle)({"text": PROMPTS})


@pytest.mark.slow
@needs_ray
def test_the_program_of_the_page_on_scaling_runs(bundle: Path) -> None:
    (program,) = blocks("docs/scaling.md", "python")
    assert '"restaurants-int8"' in program
    program = program.replace('"restaurants-int8"', repr(str(bundle)))
    program += "for row in texts.take_all(): print(repr((row['prompt'], row['text'])))"
    printed = run_python(program, bundle.parent).splitlines()
    found = dict(ast.literal_eval(line) for line in printed if line.startswith("("))
    with Generator.open(bundle, threads=1, schedule="2x") as generator:
        greedy = SamplingParams(temperature=0, max_tokens=32)
        outputs = generator.generate(list(found), greedy)
    assert list(found.values()) == [output.outputs[0].text for output in outputs]
    assert len(found) == 2


@pytest.mark.slow
@needs_ray
def test_two_actors_continue_files_and_finished_ones_are_left_alone(
    bundle: Path, tmp_path: Path
) -> None:
    output = tmp_path / "texts"
    for number in range(4):
        lines = [
            json.dumps({"prompt": f"{prompt} {number}", "id": prompt}, ensure_ascii=False)
            for prompt in PROMPTS
        ]
        (tmp_path / f"{number}.jsonl").write_text("\n".join([*lines, "{", "[]"]))

    def run() -> str:
        command = [sys.executable, str(EXAMPLE), str(bundle), *map(str, tmp_path.glob("*.jsonl"))]
        command += ["--output", str(output), "--max-tokens", "5"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "4 of 4 files written" in run()
    greedy = SamplingParams(temperature=0, max_tokens=5)
    with Generator.open(bundle, threads=1) as generator:
        for number in range(4):
            *rows, bad, worse = map(json.loads, (output / f"{number}.jsonl").open())
            prompts = [f"{prompt} {number}" for prompt in PROMPTS]
            outputs = generator.generate(prompts, greedy)
            assert [row["text"] for row in rows] == [one.outputs[0].text for one in outputs]
            assert [row["id"] for row in rows] == PROMPTS
            assert (bad["line"], worse["line"]) == (7, 8)
    (output / "0.jsonl").unlink()
    before = (output / "1.jsonl").stat()
    assert "1 of 4 files written" in run()
    assert (output / "1.jsonl").stat() == before
    assert "0 of 4 files written" in run()
