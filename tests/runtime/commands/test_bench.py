"""Run ``skipdec bench`` on a real bundle."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import run

from skipdec.runtime.commands import bench as bench_module
from skipdec.runtime.measuring.bandwidth import BandwidthProbe

SMALL = ["--prompt-len", "9", "--gen-len", "6", "--seconds", "0", "--threads", "2"]


@pytest.fixture(autouse=True)
def _small_bandwidth_probe(own_thread_pools: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each of ten passes read 16 MiB instead of 1 GiB."""
    monkeypatch.setattr(BandwidthProbe.__init__, "__defaults__", (2**24,))


def test_each_heading_is_one_line_without_broken_words() -> None:
    for heading, _ in (*bench_module._COLUMNS, *bench_module._DRAFT_COLUMNS):
        assert "\n" not in heading
        assert len(heading) <= len("tokens/pass")


def test_bench_measures_every_schedule_at_every_batch_size(exported: Callable[..., Path]) -> None:
    bundle = exported("pre_norm")
    result = run("bench", bundle, "-b", "1,3", "--schedule", "2x", *SMALL, "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["bandwidth_passes"] >= 10
    entries = document["measurements"]
    assert [(entry["batch_size"], entry["name"]) for entry in entries] == [
        (1, "full"),
        (1, "2x"),
        (3, "full"),
        (3, "2x"),
    ]
    assert [entry["realised_depth"] for entry in entries] == [6.0, 3.2, 6.0, 3.2]
    assert all(entry["time_to_first_token"] <= entry["wall_seconds"] for entry in entries)


def test_bench_of_given_prompts_states_max_tokens_per_row(
    exported: Callable[..., Path], tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": [5, 6, 7]}\n')
    drafted = ["--draft", "lookup,exact=no", "--prompts", prompts]
    result = run("bench", exported("pre_norm"), "-b", "1", *drafted, *SMALL[2:])
    assert "prompts.jsonl, up to 6 tokens per row" in " ".join(result.stdout.split()), result.stderr


def test_a_bad_option_value_is_a_usage_error(exported: Callable[..., Path]) -> None:
    bundle = exported("pre_norm")
    for arguments, message in (
        (["-b", "one"], "--batch-sizes is 'one'; allowed: comma-separated whole numbers, e.g. 1,8"),
        (["-b", "1,70000"], "bench | --batch-sizes is 70000; allowed: 65536 or less"),
        (["--schedule", "9x", "--prompt-len", "8", "--gen-len", "8"], "largest possible: 3x"),
        (["--gen-len", "1000"], "--prompt-len 128 and --gen-len 1000 are 1,128 positions"),
    ):
        result = run("bench", bundle, *arguments)
        assert result.exit_code == 2, arguments
        assert message in result.stderr
