"""Plans of a table: equal depth per row, one model for equal layers, all errors at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from reproduction.columns import COLUMNS, TABLE_COLUMNS, Depth
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
@pytest.mark.parametrize("column", TABLE_COLUMNS)
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


@pytest.mark.parametrize(("layers", "rows"), [(12, (2, 3, 4, 5, 6)), (24, (2, 3, 4, 5, 6, 8))])
def test_deep_models_get_a_row_more(layers: int, rows: tuple[int, ...]) -> None:
    assert config(sizes=f"layers={layers},width=64,heads=4").rows == rows


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
    cells = {Cell(column, speedup) for column in TABLE_COLUMNS for speedup in (1, 5, 6)}
    assert cells - filled == {Cell("d3", 6)}


def test_every_model_sees_as_many_steps_from_the_same_base() -> None:
    table = config(tuning_steps=70)
    base = base_run(table, seed=3).tuning

    tunings = [run.tuning for run in tuned_runs(table, seed=3, horizon=HORIZON)]

    assert {tuning.model for tuning in tunings} == {str(base.output)}
    assert {tuning.max_steps for tuning in tunings} == {70}
    assert {tuning.seed for tuning in (base, *tunings)} == {3}
    assert len({tuning.output for tuning in tunings}) == len(tunings)


def test_a_column_of_more_steps_has_a_control_of_as_many() -> None:
    columns = ("skipdecode", "longer", "longer-early-termination")
    table = config(speedups=(4,), columns=columns, tuning_steps=70)

    steps = {run.name: run.tuning.max_steps for run in tuned_runs(table, 0, HORIZON)}

    assert steps == {
        "control": 70,
        "longer-1x": 210,
        "skipdecode-4x": 70,
        "longer-4x": 210,
        "longer-early-termination-4x": 210,
    }


@pytest.mark.parametrize(
    ("column", "option"),
    [
        ("distilled", {"weight": 0.5, "temperature": 1.0}),
        ("curriculum", 0.5),
        ("mixture", ("linear:max=6,min=2,warmup=1,horizon=24",)),
        ("longer", 900),
    ],
)
def test_levers_are_skipdecode_with_one_option_more(column: str, option: Any) -> None:  # noqa: ANN401
    table = config(speedups=(4,), columns=("skipdecode", column))

    plain, lever = (run.tuning for run in tuned_runs(table, 0, HORIZON)[-2:])

    differences = {
        name: value
        for name, value in lever.model_dump().items()
        if value != plain.model_dump()[name] and name != "output"
    }
    assert list(differences.values()) == [option]


def test_all_problems_of_a_table_are_reported_at_once() -> None:
    with pytest.raises(UsageError) as raised:
        config(columns=("skipdecode", "beam"), speedups=(2, 2, 7), seeds=(1, 1))

    assert len(raised.value.problems) == 4
    for part in ("seeds is 1, 1", "speedups is 2, 2, 7", "beam", "7x does not fit 12 layers"):
        assert part in str(raised.value)
