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
    RunningBatch,
    Unmeasured,
    bandwidth_fraction,
    judged_aims,
    markdown,
)

H200 = DeviceFacts(
    name="NVIDIA H200", compute_capability="9.0", cuda="13.0", bandwidth=4.3e12, bandwidth_passes=10
)


def cell(schedule: str, milliseconds: float, **changes: Any) -> Cell:  # noqa: ANN401
    default = Cell(
        backend="tensorrt",
        batch_size=1,
        schedule=schedule,
        realised_depth=24.0,
        step_milliseconds_p50=milliseconds,
        step_milliseconds_p95=2 * milliseconds,
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
        uses_cuda_graphs=uses_cuda_graphs,
    )


def report(**changes: Any) -> GpuReport:  # noqa: ANN401
    default = GpuReport(
        title="opt-1.3b float16 on NVIDIA H200",
        conditions="opt-1.3b, float16.",
        versions="skipdec 0.1.0.",
        device=H200,
        cells=(cell("full", 0.7), cell("5x", 0.19)),
        baselines=(baseline(1, 0.9, 1.0, 5.0),),
    )
    return replace(default, **changes)


def verdicts(**changes: Any) -> list[bool | None]:  # noqa: ANN401
    return [met for _, _, met in judged_aims(report(**changes))]


def test_fraction_of_the_bandwidth() -> None:
    assert bandwidth_fraction(cell("full", 0.65), H200) == pytest.approx(0.94, abs=0.005)


@pytest.mark.parametrize(
    ("full", "fifth", "expected"),
    [
        (0.75, 0.2, [True, True, True]),
        (0.76, 0.2, [False, True, True]),
        (0.75, 0.21, [True, False, True]),
        (1.1, 0.2, [False, True, False]),  # the median of the baseline is 1.0
    ],
)
def test_aims(full: float, fifth: float, expected: list[bool]) -> None:
    assert verdicts(cells=(cell("full", full), cell("5x", fifth))) == expected


def test_the_fastest_backend_of_a_cell_counts() -> None:
    slow = cell("full", 2.0, backend="onnxruntime")
    assert verdicts(cells=(slow, cell("full", 0.7), cell("5x", 0.19))) == [True, True, True]
    assert "0.700 ms (tensorrt)" in markdown(report(cells=(slow, cell("full", 0.7))))


def test_larger_batches_don_t_count_as_batch_1() -> None:
    assert verdicts(cells=(cell("full", 0.7, batch_size=8),))[0] is None


def test_unmeasured_targets_are_open_not_met() -> None:
    assert verdicts(cells=()) == [None, None, None]
    assert verdicts(baselines=())[2] is None


def test_an_incomplete_comparison_says_so() -> None:
    failed = Unmeasured("tensorrt", 64, "out of memory")
    assert "of the cells measured" in markdown(report(unmeasured=(failed,)))
    assert "of the cells measured" not in markdown(report())


def test_the_table_is_one_and_whole() -> None:
    words = "no plan | for\nsm_90"
    page = markdown(report(unmeasured=(Unmeasured("tensorrt-rtx", None, words),), tests="3 passed"))
    rows = [line for line in page.splitlines() if line.startswith("|")]
    widths = {len(row.replace("\\|", "").strip("|").split("|")) for row in rows}
    assert widths == {10}
    assert len(rows) == 2 + 2 + 1 + 1
    assert rows[2].startswith("| tensorrt | 1 | `full` | 24.0 | 0.700 | 1.400 | 1,429 |")
    assert rows[2].endswith("| 0.87 | 1.43× |")
    assert "not measured: no plan \\| for sm_90" in rows[-1]
    assert "NVIDIA H200, compute capability 9.0" in page
    assert "`pytest -m gpu`: 3 passed." in page


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
