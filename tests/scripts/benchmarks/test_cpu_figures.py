"""Figures are judged by their target, ratios within a round; a processor keeps its column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.cpu.figure import Figure, Part
from benchmarks.cpu.paired import Paired, paired_calls
from benchmarks.machine import Machine
from benchmarks.record import Record, records
from pages.cpu import bench_table, cpu_page

CPUINFO = """model name\t: Intel(R) Xeon(R)
cpu family\t: 6
model\t\t: 143
flags\t\t: fpu avx2 avx512f avx512_vnni amx_int8 amx_tile
"""


@pytest.mark.parametrize(
    ("figure", "met"),
    [
        (Figure.at_least("a", 1.5, 1.5), True),
        (Figure.at_least("a", 1.5, 1.49), False),
        (Figure.at_most("a", 1.35, 1.4), False),
        (Figure.unaimed("a", 9.0), None),
    ],
)
def test_figures_are_compared_with_their_targets(figure: Figure, met: bool | None) -> None:
    assert figure.met is met


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    paired = Paired({"one": (2.0, 30.0, 9.0), "other": (1.0, 10.0, 1.0)})
    assert paired.ratio("one", "other") == 3.0
    assert paired.words("one", "other") == "9000.0 ÷ 1000.0 ms; fastest 2.00"


def test_a_step_is_held_against_the_bandwidth_beside_it() -> None:
    paired = Paired({"step": (1.0, 2.0, 1.0)}, (10.0, 5.0, 20.0))
    assert paired.floor_fraction("step", [10, 10, 10]) == 1.0
    assert paired.best_floor_fraction("step", [10, 10, 10]) == 0.5


def test_calls_run_in_turn_after_one_to_warm_up() -> None:
    ran: list[str] = []

    def call(name: str) -> float:
        ran.append(name)
        return float(len(ran))

    paired = paired_calls({name: lambda name=name: call(name) for name in "ab"}, 2)
    assert ran == list("ababab")
    assert paired.seconds == {"a": (3.0, 5.0), "b": (4.0, 6.0)}


def test_a_machine_is_named_by_family_model_and_integer_set(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(CPUINFO)
    machine = Machine.here(cpuinfo)
    assert machine.processor == "Intel(R) Xeon(R), family 6, model 143"
    assert machine.instruction_sets == ("avx2", "avx512f", "avx512_vnni", "amx_int8")
    assert machine.key == "intel-r-xeon-r-family-6-model-143-amx_int8"
    assert machine.has_amx


def test_another_part_and_another_processor_leave_what_was_measured(tmp_path: Path) -> None:
    part = Part([Figure("x", "≤ 1", "2", False)]).document() | {"threads": 2}
    Record(tmp_path / "a.json").add("one", part, {"skipdec": "0"})
    Record(tmp_path / "a.json").add("two", {**part, "figures": []}, {})
    (tmp_path / "b.json").write_text(
        '{"processor": "Other", "instruction_sets": [], "parts": {"one": {"figures": [{"what": "x",'
        '"target": "≤ 1", "measured": "1", "met": true}], "date": "", "commit": "", "threads": 1,'
        ' "versions": {}}}}'
    )
    page = cpu_page(list(records(tmp_path)))
    assert "| x | ≤ 1 | **missed** 2 | 1 |" in page


def test_the_table_of_a_bench_is_markdown() -> None:
    entry: dict[str, Any] = {
        "name": "full",
        "batch_size": 1,
        "turns": 5,
        "realised_depth": 24.0,
        "time_to_first_token": 0.1,
        "step_milliseconds_p50": 30.0,
        "step_milliseconds_p95": 31.0,
        "tokens_per_second": 30.0,
        "wall_seconds": 2.0,
        "speedup": 1.0,
        "decode_speedup": 1.0,
        "bytes_ratio": 1.0,
        "bandwidth_fraction": 0.93,
        "best_bandwidth_fraction": 0.95,
    }
    document = {
        "bandwidth_bytes_per_second": 4e10,
        "bandwidth_passes": 10,
        "config": {"prompt_length": 128, "num_tokens": 64},
        "measurements": [entry, entry],
    }
    lines = [line for line in bench_table(document).splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 2
    assert len({line.count("|") for line in lines}) == 1
