"""``skipdec bench`` on a real bundle; measuring in its own process, as it shares a thread pool."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from command_line import run, run_process

from skipdec.runtime.commands import bench as bench_module

bench = partial(run_process, "bench")
SMALL = ["--prompt-len", "9", "--gen-len", "6", "--seconds", "0", "--threads", "2"]


def test_headings_are_single_words_or_units_on_one_line() -> None:
    for heading, _ in (*bench_module._COLUMNS, *bench_module._DRAFT_COLUMNS):
        assert "\n" not in heading
        assert len(heading) <= len("tokens/pass")


def test_bench_measures_every_schedule_at_every_batch_size(exported: Callable[..., Path]) -> None:
    result = bench(exported("pre_norm"), "-b", "1,3", "--schedule", "2x", *SMALL, "--json")
    assert result.returncode == 0, result.stderr
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


def test_texts_of_given_prompts_have_up_to_so_many_tokens(
    exported: Callable[..., Path], tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": [5, 6, 7]}\n')
    drafted = ["--draft", "lookup,exact=no", "--prompts", prompts]
    result = bench(exported("pre_norm"), "-b", "1", *drafted, *SMALL[2:])
    assert "prompts.jsonl, up to 6 tokens per row" in " ".join(result.stdout.split()), result.stderr


@pytest.mark.usefixtures("own_thread_pools")
def test_bad_values_end_with_usage_errors(exported: Callable[..., Path]) -> None:
    bundle = exported("pre_norm")
    for arguments, message in (
        (["-b", "one"], "--batch-sizes is 'one'; allowed: comma-separated whole numbers, e.g. 1,8"),
        (["--schedule", "9x"], "largest possible: 3x"),
        (["--gen-len", "1000"], "prompt"),
    ):
        result = run("bench", bundle, *arguments)
        assert result.exit_code == 2, arguments
        assert message in result.stderr
