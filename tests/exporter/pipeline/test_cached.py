"""A command given a checkpoint exports it once and reuses the bundle until it changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import command_line
import pytest
from fixture_types import Checkpoints
from text_bundles import STRUCTURE, copy_with_tokenizer

from skipdec.engines.errors import CheckpointError, MissingExtraError
from skipdec.engines.host import installation
from skipdec.exporter.pipeline.cached import cached_bundle

INT8 = {"quantize": "int8", "dtype": "float32"}


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """Record export commands, which only write a manifest or fail for "broken"."""
    made: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:  # noqa: ANN401
        made.append(command)
        if command[-1].endswith("broken"):
            return subprocess.CompletedProcess(command, 3)
        target = Path(command[command.index("-o") + 1])
        target.mkdir(parents=True)
        (target / "manifest.json").touch()
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return made


def write_model(directory: Path) -> str:
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    return str(directory)


def test_a_bundle_is_exported_once_for_equal_files_and_options(
    exports: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "model")
    first = cached_bundle(model, INT8)
    assert first == cached_bundle(model, INT8, quiet=True)
    assert first is not None
    assert first.parent == tmp_path / "cache" / "skipdec" / "bundles"
    assert first.name.startswith("model-int8-")
    assert capsys.readouterr().err == f"exporting {model} once, to {first}\n"
    assert cached_bundle(model, INT8 | {"quantize": "int4"}) != first
    (tmp_path / "model" / "config.json").write_text('{"changed": 1}')
    assert cached_bundle(model, INT8) != first
    assert len(exports) == 3


def test_a_failed_export_ends_the_command_with_its_code(
    exports: list[list[str]], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as ended:
        cached_bundle(write_model(tmp_path / "broken"), INT8)
    assert (ended.value.code, len(exports)) == (3, 1)


def test_a_path_without_a_checkpoint_is_left_to_the_bundle_reader(tmp_path: Path) -> None:
    for text in (str(tmp_path), "/dev/null"):
        assert cached_bundle(text, INT8) is None


def test_a_missing_path_is_refused_with_the_accepted_kinds() -> None:
    for text in ("absent", "./some/absent", "/some/absent", "a/b/c"):
        with pytest.raises(CheckpointError, match=r"does not exist; .* hub id or short name"):
            cached_bundle(text, INT8)


def test_a_misspelt_model_gets_a_suggestion_unless_it_is_a_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"does not exist; did you mean 'opt-125m'\?"):
        cached_bundle("opt-124m", INT8)
    (tmp_path / ".opt-124m.partial").mkdir()
    (tmp_path / ".opt-123m.old").mkdir()
    (tmp_path / ".opt-123m.old" / "manifest.json").touch()  # between the renames of a swap
    assert cached_bundle("opt-124m", INT8) is cached_bundle("opt-123m", INT8) is None
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".m.skipdec.partial").mkdir()
    assert cached_bundle("out/m.skipdec", INT8) is None  # also looks like a hub id


def test_common_mistakes_for_a_checkpoint_are_named(
    exports: list[list[str]], tmp_path: Path
) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "model.gguf").touch()
    for path, problem in ((tmp_path, "a PEFT adapter"), (tmp_path / "model.gguf", "a GGUF file")):
        with pytest.raises(CheckpointError, match=problem):
            cached_bundle(str(path), INT8)
    assert not exports


def test_missing_packages_are_named_with_the_command_that_installs_them(
    exports: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "is_installed", lambda name: name != "torch")
    with pytest.raises(MissingExtraError, match=r"exporting .*model \| needs torch, .* pip inst"):
        cached_bundle(write_model(tmp_path / "model"), INT8)
    assert not exports


def run_here(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:  # noqa: ANN401
    """Run a command of skipdec in this process, which has imported torch and traced."""
    python, *words = command
    assert (python, words[:3]) == (sys.executable, ["-P", "-m", "skipdec"])
    return subprocess.CompletedProcess(command, command_line.run(*words[3:]).exit_code)


@pytest.mark.usefixtures("verified_here", "own_thread_pools")
def test_generate_takes_export_options_only_with_a_checkpoint(
    checkpoint: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", run_here)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = copy_with_tokenizer(checkpoint(STRUCTURE), tmp_path / "model")
    arguments = ["-p", "a", "--temperature", "0", "--json", "-q"]
    arguments += command_line.config(export={"dtype": "float16"})
    done = command_line.run("generate", model, *arguments)
    (bundle,) = (tmp_path / "cache" / "skipdec" / "bundles").glob("model-float16-*")
    assert json.loads(done.stdout)["tokens"] > 0
    monkeypatch.delattr(subprocess, "run")
    again = command_line.run("generate", model, *arguments)
    assert json.loads(again.stdout)["results"] == json.loads(done.stdout)["results"]
    refused = command_line.run("generate", bundle, *arguments)
    assert refused.exit_code == 2
    assert "--dtype | is for checkpoints" in refused.stderr
