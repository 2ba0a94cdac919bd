"""Plans of a table: equal depth per row, one model for equal layers, all errors at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from reproduction.columns import COLUMNS, Depth
from reproduction.config import ReproductionConfig
from reproduction.runs import Cell, base_run, tuned_runs

from skipdec.engines.errors import UsageError

HORIZON = 24


def config(**changes: Any) -> ReproductionConfig:  # noqa: ANN401
    return ReproductionConfig(
        **{"train": Path("train.csv"), "dev": Path("dev.csv"), "work": Path("work"), **changes}
    )


@pytest.mark.parametrize("num_layers", [12, 24])
@pytest.mark.parametrize("speedup", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("column", COLUMNS)
def test_all_columns_of_a_row_run_equally_many_layers(
    column: str, speedup: int, num_layers: int
) -> None:
    depth = Depth(speedup, num_layers, HORIZON)
    text = COLUMNS[column].schedule(depth)
    if text is None:
        assert (column, speedup, num_layers) == ("d3", 6, 12)
    else:
        average = depth.parse(text).average_budget(HORIZON)
        assert average == pytest.approx(float(depth.average), abs=0.1)


def test_columns_that_run_the_same_layers_share_a_model() -> None:
    runs = tuned_runs(config(speedups=(5, 6)), seed=0, horizon=HORIZON)

    assert [run.name for run in runs] == [
        "control",
        "skipdecode-5x",
        "early-termination-5x",
        "unified-5x",
        "d3-5x",
        "skipdecode-6x",
        "early-termination-6x",
    ]
    assert runs[5].cells == (Cell("skipdecode", 6), Cell("unified", 6))
    filled = {cell for run in runs for cell in run.cells}
    cells = {Cell(column, speedup) for column in COLUMNS for speedup in (1, 5, 6)}
    assert cells - filled == {Cell("d3", 6)}


def test_every_model_sees_as_many_steps_from_the_same_base() -> None:
    table = config(tuning_steps=70)
    base = base_run(table, seed=3).tuning

    tunings = [run.tuning for run in tuned_runs(table, seed=3, horizon=HORIZON)]

    assert {tuning.model for tuning in tunings} == {str(base.output)}
    assert {tuning.max_steps for tuning in tunings} == {70}
    assert {tuning.seed for tuning in (base, *tunings)} == {3}
    assert len({tuning.output for tuning in tunings}) == len(tunings)


def test_all_problems_of_a_table_are_reported_at_once() -> None:
    with pytest.raises(UsageError) as raised:
        config(columns=("skipdecode", "beam"), speedups=(2, 2, 7), seeds=(1, 1))

    assert len(raised.value.problems) == 4
    for part in ("seeds is 1, 1", "speedups is 2, 2, 7", "beam", "7x does not fit 12 layers"):
        assert part in str(raised.value)
