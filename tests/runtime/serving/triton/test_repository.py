"""Model repositories have the right files and configuration, or are refused."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import pytest
from command_line import run

from skipdec import EngineBundle, ExitSchedule, SkipDecError, UsageError
from skipdec.runtime.serving.triton.repository import config_text, write_triton_repository
from skipdec.runtime.serving.triton.settings import ModelSettings, TritonRepositoryConfig


def parameters(text: str) -> dict[str, dict[str, str]]:
    found = re.findall(r'key: "(\w+)" value { string_value: ("(?:[^"\\]|\\.)*") }', text)
    return {key: {"string_value": json.loads(value)} for key, value in found}


@pytest.mark.parametrize("flag", ["--link", "--copy"])
def test_a_model_has_a_configuration_a_module_and_the_bundle(
    bundle: Path, tmp_path: Path, flag: str
) -> None:
    command = ["triton", str(bundle), "-o", str(tmp_path), "--name", "m", flag, "--threads", "1"]
    result = run(*command)
    assert result.exit_code == 0, result.output
    held = tmp_path / "m" / "1" / "bundle"
    assert held.is_symlink() == (flag == "--link")
    assert EngineBundle.open(held).manifest == EngineBundle.open(bundle).manifest
    compile((tmp_path / "m" / "1" / "model.py").read_text(), "model.py", "exec")
    text = (tmp_path / "m" / "config.pbtxt").read_text()
    assert "KIND_CPU" in text
    assert ModelSettings.from_parameters(parameters(text)) == ModelSettings(threads=1)


def test_all_settings_round_trip_through_the_configuration() -> None:
    settings = ModelSettings(
        schedule="2x:horizon=64", threads=1, max_batch_size=3, kv_memory=2**30, max_waiting=5,
        max_prefill_tokens=64, admission="gang:min_free=2,hold_ms=8", raw_prompts=True,
        weights="copied", verify="graphs", device="cpu", draft="own+lookup,tokens=5",
    )  # fmt: skip
    text = config_text("m", settings.to_parameters(), "cpu", None)
    assert ModelSettings.from_parameters(parameters(text)) == settings


@pytest.mark.parametrize(
    ("text", "sharing"), [("True", "shared"), ("False", "off"), ("client", "client")]
)
def test_prefix_cache_accepts_booleans(text: str, sharing: str) -> None:
    given = {"prefix_cache": {"string_value": text}}
    assert ModelSettings.from_parameters(given).prefix_cache == sharing


@pytest.mark.parametrize(
    ("device", "group"), [("cuda", "KIND_GPU"), ("cuda:1", "KIND_GPU gpus: [ 1 ]")]
)
def test_the_configuration_requests_the_gpu_of_the_device(
    bundle: Path, tmp_path: Path, device: str, group: str
) -> None:
    write_triton_repository(
        TritonRepositoryConfig(bundles=(bundle,), output=tmp_path, name="m", device=device)
    )
    text = (tmp_path / "m" / "config.pbtxt").read_text()
    assert f"instance_group [ {{ count: 1 kind: {group} }} ]" in text


def test_a_parameter_that_is_unknown_or_not_a_text_is_refused() -> None:
    with pytest.raises(UsageError, match="string_value"):
        ModelSettings.from_parameters({"threads": {"int_value": 2}})
    with pytest.raises(UsageError, match="did you mean 'threads'"):
        ModelSettings.from_parameters({"thread": {"string_value": "2"}})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"schedule": "3y"}, "3y"),
        ({"admission": "lifo"}, "lifo"),
        ({"device": "tpu"}, r"device \| is 'tpu'; allowed: cpu, cuda, cuda:INDEX, rehearsal"),
        ({"device": "cuda:one"}, r"device \| is 'cuda:one'; allowed: cpu, cuda, cuda:INDEX"),
        ({"draft": "first:9"}, "first:9 runs 9 layers of 6"),
        ({"draft": "own", "device": "cuda:1"}, "does not keep the bits on a GPU"),
        ({"name": "a/b"}, "can't be a model's name"),
    ],
)
def test_invalid_options_are_refused_before_anything_is_written(
    bundle: Path, tmp_path: Path, options: dict[str, str], problem: str
) -> None:
    with pytest.raises(SkipDecError, match=problem):
        write_triton_repository(
            TritonRepositoryConfig(bundles=(bundle,), output=tmp_path / "r", **options)
        )  # type: ignore[arg-type]
    assert not (tmp_path / "r").exists()


def test_a_loop_of_links_is_no_bundle(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(SkipDecError, match=r"loop \| does not exist"):
        write_triton_repository(TritonRepositoryConfig(bundles=(loop,), output=tmp_path / "r"))


def test_two_bundles_with_one_name_are_refused(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="2 bundles are called"):
        TritonRepositoryConfig(bundles=(bundle, bundle), output=tmp_path)


def test_force_replaces_a_model_and_nothing_else(bundle: Path, tmp_path: Path) -> None:
    once = TritonRepositoryConfig(bundles=(bundle,), output=tmp_path, name="m")
    again = once.updated(force=True, schedule="full")
    write_triton_repository(once)
    with pytest.raises(UsageError, match="--force"):
        write_triton_repository(once)
    (model,) = write_triton_repository(again)
    assert '"full"' in (model / "config.pbtxt").read_text()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes").touch()
    with pytest.raises(UsageError, match="is not a model of Triton"):
        write_triton_repository(again.updated(name="other"))


@pytest.mark.parametrize("flag", ["--link", "--copy"])
def test_replacing_a_model_by_the_bundle_in_it_loses_nothing(
    bundle: Path, tmp_path: Path, flag: str
) -> None:
    (model,) = write_triton_repository(
        TritonRepositoryConfig(bundles=(bundle,), output=tmp_path, name="m", is_copied=True)
    )
    held = model / "1" / "bundle"
    result = run("triton", str(held), "-o", str(tmp_path), "--name", "m", "--force", flag)
    assert result.exit_code == (0 if flag == "--copy" else 2), result.output
    assert ("lies in" in result.output) == (flag == "--link")
    assert EngineBundle.open(held, verify="full").manifest == EngineBundle.open(bundle).manifest
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_model_that_holds_another_models_bundle_is_not_replaced(
    bundle: Path, tmp_path: Path
) -> None:
    once = TritonRepositoryConfig(bundles=(bundle,), output=tmp_path, name="m", is_copied=True)
    (model,) = write_triton_repository(once)
    copy = EngineBundle.open(bundle).save(tmp_path / "elsewhere" / "m").path
    both = (copy, model / "1" / "bundle")
    with pytest.raises(UsageError, match="write that model alone"):
        write_triton_repository(once.updated(bundles=both, name=None, force=True))
    EngineBundle.open(both[1], verify="full")


def test_a_model_stays_until_its_replacement_is_complete(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = TritonRepositoryConfig(bundles=(bundle,), output=tmp_path, name="m")
    (model,) = write_triton_repository(once)

    def full(self: EngineBundle, directory: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))

    monkeypatch.setattr(EngineBundle, "save", full)
    with pytest.raises(OSError, match="No space left"):
        write_triton_repository(once.updated(is_copied=True, force=True))
    assert EngineBundle.open(model / "1" / "bundle").path == bundle.resolve()
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_schedule_file_is_written_into_the_configuration(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = ExitSchedule(num_layers=6, max_exit_layer=4, min_exit_layer=2, horizon=9)
    monkeypatch.chdir(tmp_path)
    Path("fitted.json").write_text(json.dumps(schedule.to_document()))
    forms = "fitted.json", schedule, "2x"
    texts = []
    for form in forms:
        (model,) = write_triton_repository(
            TritonRepositoryConfig(
                bundles=(bundle,), output=tmp_path, name="m", schedule=form, force=True
            )
        )
        written = parameters((model / "config.pbtxt").read_text())
        texts.append(ModelSettings.from_parameters(written).schedule)
    assert texts == [schedule, schedule, "2x"], "a text without a horizon stays a text"
