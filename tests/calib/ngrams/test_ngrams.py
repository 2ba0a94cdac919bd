"""`skipdec ngrams` counts n-grams of a model's texts, from which its bundles draft."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import command_line
import pytest

from skipdec import Generator, SamplingParams
from skipdec.engines.kernels.library import find_library

run = partial(command_line.run, "ngrams")


def rows_of(path: Path) -> list[list[int]]:
    rows: list[list[int]] = json.loads(path.read_bytes())["ngrams"]
    return rows


def test_a_bundle_with_ngrams_drafts_in_its_first_text(
    model: Path, rows: Path, tmp_path: Path
) -> None:
    exported = partial(command_line.run, "export", model, "--quantize", "int8", "--no-verify")
    if find_library() is None:
        pytest.skip("the kernels were not compiled")
    assert exported("-o", tmp_path / "plain").exit_code == 0
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    with Generator.open(tmp_path / "plain", draft="own,adapt=no") as generator:
        (plain,) = generator.generate(["name[Ant]"], params)
    written = tmp_path / "written.jsonl"
    line = json.dumps({"prompt": "name[Ant]", "completion": plain.outputs[0].text})
    written.write_text(f"{line}\n{line}\n")

    result = run(model, "--data", written, "-o", tmp_path / "ngrams.json")
    assert result.exit_code == 0, result.stderr
    assert f"{len(rows_of(tmp_path / 'ngrams.json'))} n-grams of" in result.stdout
    known = ("--ngrams", tmp_path / "ngrams.json", "-o", tmp_path / "knowing")
    assert exported(*known).exit_code == 0
    with Generator.open(tmp_path / "knowing", draft="own,adapt=no") as generator:
        (drafted,) = generator.generate(["name[Ant]"], params)
    assert drafted.outputs[0].token_ids == plain.outputs[0].token_ids
    assert drafted.outputs[0].drafts.passes < plain.outputs[0].drafts.passes


def test_a_model_writes_the_texts_itself_once(writing_model: Path, tmp_path: Path) -> None:
    output = tmp_path / "ngrams.json"
    options = (writing_model, "--data", "self:20", "-o", output, "--json")
    first = run(*options)
    assert first.exit_code == 0, first.stderr
    report = json.loads(first.stdout)
    assert (report["texts"], report["ngrams"]) == (20, len(rows_of(output)))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"ngrams.json", "ngrams.json.self.json", "ngrams.json.self.jsonl"}
    assert "exists; pass --force to replace it" in run(*options).stderr
    again = run(*options, "--force")
    assert json.loads(again.stdout) == report
    assert "writing texts" not in again.stderr


def test_ctrl_c_says_that_texts_which_the_model_wrote_are_kept(
    writing_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("skipdec.engines.host.progress.ConsoleProgress.stage", stop)
    result = run(writing_model, "--data", "self:20", "-o", tmp_path / "ngrams.json")
    assert result.exit_code == 130
    assert "texts that the model wrote are kept" in result.stderr


def test_texts_may_exceed_a_bundles_default_length(writing_model: Path, tmp_path: Path) -> None:
    model = shutil.copytree(writing_model, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 16384}))
    texts = tmp_path / "texts.jsonl"
    texts.write_text(json.dumps({"prompt": "a", "completion": "b" * 9000}) + "\n")
    options = (model, "--data", texts, "-o", tmp_path / "ngrams.json", "--json")
    assert json.loads(run(*options, "--max-length", 10000).stdout)["tokens"] == 9001
    assert json.loads(run(*options, "--force").stdout)["tokens"] == 8192 - 2  # "<s>" and "a"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--max-length", 4, "--data", "self"), "max_length"),
        (("--max-length", 1000, "--data", "self"), "at most the model's 64"),
        (("--data", "missing.jsonl"), "does not exist"),
    ],
)
def test_invalid_options_are_refused_before_work(
    writing_model: Path, tmp_path: Path, options: tuple[object, ...], words: str
) -> None:
    result = run(writing_model, *options, "-o", tmp_path / "ngrams.json")
    assert result.exit_code == 2
    assert words in result.stderr
    assert not list(tmp_path.iterdir())


def test_export_refuses_ngrams_with_unknown_tokens(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ngrams.json"
    path.write_text('{"ngrams": [[1, 100000, 2, 2]]}')
    result = command_line.run("export", model, "--ngrams", path, "-o", tmp_path / "bundle")
    assert result.exit_code == 2
    assert "ngrams.0 is [1, 100000, 2, 2]" in result.stderr
    assert "write it with skipdec ngrams" in result.stderr


def test_export_refuses_a_file_of_ngrams_beyond_the_limit(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "ngrams.json"
    path.write_text('{"ngrams": []}' + " " * 5_242_880)
    result = command_line.run("export", model, "--ngrams", path, "-o", tmp_path / "bundle")
    assert result.exit_code == 2
    assert "is larger than 5,242,880 bytes, the limit" in result.stderr
