"""The page of a GPU check: figures, failed steps, and targets judged as set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from benchmarks.gpu.report import (
    Baseline,
    Cell,
    DeviceFacts,
    GpuReport,
    PartRow,
    RunningBatch,
    StepCost,
    Unmeasured,
    bandwidth_fraction,
    judged_aims,
    markdown,
)

H100 = DeviceFacts(
    name="NVIDIA H100", compute_capability="9.0", cuda="13.0", bandwidth=3.0e12, bandwidth_passes=10
)


def cell(schedule: str, milliseconds: float, **changes: Any) -> Cell:  # noqa: ANN401
    default = Cell(
        backend="tensorrt",
        batch_size=1,
        schedule=schedule,
        realised_depth=24.0,
        step_milliseconds_p50=milliseconds,
        step_milliseconds_p95=2 * milliseconds,
        time_to_first_token=0.0123,
        tokens_per_second=1000 / milliseconds,
        decode_speedup=1.0,
        bytes_per_step=2_630_000_000,
    )
    return replace(default, **changes)


def baseline(batch_size: int, *milliseconds: float, uses_cuda_graphs: bool = True) -> Baseline:
    return Baseline(
        batch_size=batch_size,
        num_layers=24,
        step_milliseconds=milliseconds,
        time_to_first_token=0.03,
        uses_cuda_graphs=uses_cuda_graphs,
    )


def report(**changes: Any) -> GpuReport:  # noqa: ANN401
    default = GpuReport(
        title="opt-1.3b float16 on NVIDIA H100",
        conditions="opt-1.3b, float16.",
        versions="skipdec 0.1.0.",
        device=H100,
        cells=(cell("full", 0.8), cell("5x", 0.24)),
        baselines=(baseline(1, 0.95, 1.0, 5.0),),
    )
    return replace(default, **changes)


def verdicts(**changes: Any) -> list[bool | None]:  # noqa: ANN401
    return [met for _, _, met in judged_aims(report(**changes))]


def test_fraction_of_the_bandwidth() -> None:
    assert bandwidth_fraction(cell("full", 0.93), H100) == pytest.approx(0.94, abs=0.005)


@pytest.mark.parametrize(
    ("full", "fifth", "expected"),
    [
        (1.0, 0.3, [True, None, True]),  # the median of the baseline is 1.0
        (1.01, 0.3, [False, None, True]),
        (1.0, 0.31, [True, None, False]),
    ],
)
def test_aims(full: float, fifth: float, expected: list[bool | None]) -> None:
    assert verdicts(cells=(cell("full", full), cell("5x", fifth))) == expected


def test_the_fastest_backend_of_a_cell_counts() -> None:
    slow = cell("full", 2.0, backend="onnxruntime")
    assert verdicts(cells=(slow, cell("full", 0.8), cell("5x", 0.24))) == [True, None, True]
    assert "0.80 (batch 1, tensorrt)" in markdown(report(cells=(slow, cell("full", 0.8))))


def test_the_worst_batch_size_decides() -> None:
    cells = (cell("full", 0.9), cell("full", 2.3, batch_size=8))
    assert verdicts(cells=cells, baselines=(baseline(1, 1.0), baseline(8, 2.0)))[0] is False


def test_unmeasured_targets_are_open_not_met() -> None:
    assert verdicts(cells=()) == [None, None, None]
    assert verdicts(baselines=()) == [None, None, None]


def test_an_incomplete_comparison_says_so() -> None:
    failed = Unmeasured("tensorrt", 64, "out of memory")
    assert "of what was measured" in markdown(report(unmeasured=(failed,)))
    assert "of what was measured" not in markdown(report())


def test_the_table_is_one_and_whole() -> None:
    words = "no plan | for\nsm_90"
    page = markdown(report(unmeasured=(Unmeasured("tensorrt-rtx", None, words),)))
    rows = [line for line in page.splitlines() if line.startswith("|")]
    widths = {len(row.replace("\\|", "").strip("|").split("|")) for row in rows}
    assert widths == {11}
    assert len(rows) == 2 + 2 + 1 + 1
    assert rows[2].startswith("| tensorrt | 1 | `full` | 24.0 | 0.800 | 1.600 | 12.30 | 1,250 |")
    assert rows[2].endswith("| 1.10 | 1.25× |")
    assert "not measured: no plan \\| for sm_90" in rows[-1]
    assert "NVIDIA H100, compute capability 9.0" in page


def test_parts_that_did_not_pass_show_their_words() -> None:
    row = PartRow(
        name="texts",
        proves="tokens",
        state="passed",
        expected=75,
        seconds=12.4,
        found="10 passed",
    )
    bad = replace(row, name="memory", state="hung", words="killed after 180 s: last line")
    page = markdown(report(parts=(row, bad, replace(row, name="server", seconds=None))))
    assert "| texts | tokens | passed | 12 | 75 | 10 passed |" in page
    assert "| memory | tokens | **hung** | 12 | 75 | 10 passed |" in page
    assert page.endswith("## memory: hung\n\n```text\nkilled after 180 s: last line\n```\n")
    assert "## texts" not in page


def test_the_cost_of_steps_has_a_table_of_its_own() -> None:
    cost = StepCost(
        batch_size=8,
        schedule="5x",
        step_milliseconds=0.5,
        engine_milliseconds=0.45,
        beside_milliseconds=0.05,
    )
    assert markdown(report(costs=(cost,))).endswith("| 8 | `5x` | 0.500 | 0.450 | 0.050 |\n")


def test_running_batches_have_a_table_of_their_own() -> None:
    entry = RunningBatch(
        backend="tensorrt",
        rows=8,
        requests=32,
        failed=0,
        compared=8,
        equal=7,
        tokens_per_second=4321.0,
        static_tokens_per_second=3210.0,
        step_milliseconds=1.5,
        mixing_loss=1.25,
    )
    page = markdown(report(running_batches=(entry,)))
    assert page.splitlines()[-1] == ("| tensorrt | 8 | 4,321 | 3,210 | 1.500 | 1.25 | 7 of 8 | 0 |")
    assert "running batch" not in markdown(report())


def test_a_baseline_without_cuda_graphs_says_so() -> None:
    assert "without CUDA graphs" in markdown(
        report(baselines=(baseline(1, 1.0, uses_cuda_graphs=False),))
    )


def test_a_rehearsal_judges_nothing() -> None:
    page = markdown(report(rehearsal=True))
    assert "no figure counts" in page
    assert "met" not in page
