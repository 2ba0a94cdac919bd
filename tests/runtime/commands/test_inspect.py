"""Run ``skipdec inspect`` and ``skipdec schedule set`` on a bundle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run
from hollow_bundles import write_hollow_bundle

from skipdec import ConfigurationError, UsageError, Workload, inspect_bundle
from skipdec.engines.bundle import EngineBundle
from skipdec.runtime.schedule import ExitSchedule


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    schedule = ExitSchedule(num_layers=12, max_exit_layer=9, min_exit_layer=3, horizon=32)
    return write_hollow_bundle(tmp_path / "bundle", schedule).path


def test_json_has_every_requested_section(bundle: Path) -> None:
    sections = [f"--show={name}" for name in ("engines", "io", "memory", "schedule")]
    shown = json.loads(run("inspect", bundle, *sections, "--json").stdout)
    assert [engine["name"] for engine in shown["engines"]][:2] == ["embed", "layer_000"]
    assert [len(group["engines"]) for group in shown["io"]] == [1, 12, 1]
    texts = [entry["schedule"] for entry in shown["schedule"]]
    assert texts[:3] == [
        "full",
        "linear:max=9,min=3,warmup=1,horizon=32",
        "linear:max=8,min=4,warmup=1,horizon=32",
    ]
    assert shown["schedule"][0]["bytes_ratio"] == 1.0
    assert all(entry["bytes_ratio"] > 1 for entry in shown["schedule"][1:])
    caches = [entry["bytes"] for entry in shown["memory"]["kv_cache"]]
    assert caches[0] == max(caches) > min(caches)


def test_tables_name_the_schedules(bundle: Path) -> None:
    result = run("inspect", bundle, "--schedule", "constant:max=6", "--show", "schedule")
    assert result.exit_code == 0
    summary, *table = result.stdout.splitlines()
    assert "onnxruntime, kernels onnxruntime, float32" in summary
    assert summary.endswith("schedule linear:max=9,min=3,warmup=1,horizon=32")
    assert any("constant:max=6,min=6,warmup=1,horizon=1 " in line for line in table)
    assert "memory" not in result.stdout


def test_a_batch_size_over_the_limit_is_refused(bundle: Path) -> None:
    for option in ("--batch-size", "--slots"):
        done = run("inspect", bundle, option, 65537)
        assert done.exit_code == 2
        assert f"{option} is 65537; allowed: 65536 or less" in done.stderr


@pytest.mark.parametrize("option", ["--prompt-len", "--gen-len"])
def test_a_length_over_the_limit_is_refused(bundle: Path, option: str) -> None:
    done = run("inspect", bundle, option, 10**23)
    assert done.exit_code == 2
    assert "allowed: 1048576 or less" in done.stderr


def test_slots_show_the_cost_of_mixed_depths(bundle: Path) -> None:
    steep = ["--schedule=exponential:max=12,min=2,rate=5,horizon=12", "--slots=8"]
    steep += ["--prompt-len=1", "--gen-len=12"]
    shown = json.loads(run("inspect", bundle, *steep, "--json").stdout)
    losses = {entry["schedule"].split(":")[0]: entry["mixing_loss"] for entry in shown["schedule"]}
    assert losses["full"] == pytest.approx(1.0)
    assert losses["exponential"] > 1.25
    assert "admission gang" in run("inspect", bundle, *steep).stdout.replace("\n", " ")
    assert "mixing" not in run("inspect", bundle).stdout


def test_python_refuses_what_the_command_refuses(bundle: Path) -> None:
    with pytest.raises(ConfigurationError, match="num_tokens is 1; allowed: 2 or more"):
        Workload(num_tokens=1)
    with pytest.raises(UsageError, match="'weather' is unknown; allowed: engines, io, memory, sch"):
        inspect_bundle(bundle, sections=("weather",))


def test_unknown_sections_and_bundles_are_refused(bundle: Path, tmp_path: Path) -> None:
    unknown = run("inspect", bundle, "--show", "weather", "--verify", "all")
    assert unknown.exit_code == 2
    assert "--show is 'weather'; allowed: 'engines', 'io', 'memory' or 'schedule'" in unknown.stderr
    assert "--verify is 'all'; allowed: 'graphs' or 'full'" in unknown.stderr
    missing = run("inspect", tmp_path / "absent")
    assert missing.exit_code == 1
    assert "does not exist" in missing.stderr


def test_set_changes_only_the_schedule(bundle: Path) -> None:
    before = EngineBundle.open(bundle)
    result = run("schedule", "set", bundle, "2x")
    assert result.stdout == "linear:max=8,min=4,warmup=1,horizon=32\n"  # the horizon is kept
    after = EngineBundle.open(bundle)
    assert after.manifest == before.manifest
    assert ExitSchedule.from_document(after.schedule_document).max_exit_layer == 8


def test_set_refuses_a_preset_without_a_horizon(bundle: Path) -> None:
    assert run("schedule", "set", bundle, "full").exit_code == 0
    result = run("schedule", "set", bundle, "2x")
    assert result.exit_code == 2
    assert "horizon is missing" in result.stderr
    assert run("schedule", "set", bundle, "2x", "--horizon", 20).exit_code == 0
