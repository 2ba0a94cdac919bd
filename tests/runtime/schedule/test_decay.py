"""Decays match the worked examples of their docstrings and round exactly."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest

from skipdec.engines.errors import ScheduleError
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.decays import DECAYS, d3_horizon
from skipdec.runtime.schedule.rounding import round_half_up


def budgets(decay: str, options: dict[str, Any], horizon: int = 5) -> list[int]:
    values = {"max_exit_layer": 8, "min_exit_layer": 4, "horizon": horizon} | options
    schedule = ExitSchedule(num_layers=12, decay=decay, **values)
    return [schedule.budget(index) for index in range(schedule.horizon + 2)]


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (Fraction(25, 2), 13),
        (Fraction(5, 2), 3),
        (Fraction(249999999999999999999, 10**20), 2),
        (Fraction(7), 7),
    ],
)
def test_ties_round_upward_exactly(value: Fraction, rounded: int) -> None:
    assert round_half_up(value) == rounded


@pytest.mark.parametrize(
    ("decay", "options", "expected"),
    [
        ("linear", {}, [8, 7, 6, 5, 4, 4, 4]),
        ("power", {"power": 2}, [8, 8, 7, 6, 4, 4, 4]),
        ("power", {"power": 0.5}, [8, 6, 5, 5, 4, 4, 4]),
        ("exponential", {"rate": 2}, [8, 6, 5, 4, 4, 4, 4]),
        ("cosine", {}, [8, 7, 6, 5, 4, 4, 4]),
        ("step", {"steps": 3, "horizon": 6}, [8, 8, 6, 6, 4, 4, 4, 4]),
        ("constant", {"max_exit_layer": 4}, [4, 4, 4, 4, 4, 4, 4]),
        ("table", {"table": (8, 8, 5), "horizon": 3}, [8, 8, 5, 4, 4]),
        (
            "d3",
            {"max_exit_layer": 12, "min_exit_layer": 5, "alpha": 0.9, "horizon": 8},
            [12, 10, 9, 8, 7, 7, 6, 5, 5, 5],
        ),
    ],
)
def test_each_decay_matches_its_worked_example(
    decay: str, options: dict[str, Any], expected: list[int]
) -> None:
    assert budgets(decay, options) == expected


def test_every_registered_decay_has_a_worked_example_here() -> None:
    examples = next(mark for mark in test_each_decay_matches_its_worked_example.pytestmark).args[1]
    assert {example[0] for example in examples} == set(DECAYS)


def test_cosine_ties_do_not_depend_on_the_last_bit() -> None:
    # cos(π/3) is 0.5000000000000001 in floating point; a quarter of the fall of 2 is a tie.
    assert budgets("cosine", {"max_exit_layer": 6}, horizon=4)[:4] == [6, 6, 5, 4]


@pytest.mark.parametrize(
    ("decay", "options", "message"),
    [
        ("power", {"power": 0}, "power is 0"),
        ("power", {"power": float("nan")}, "power is nan"),
        ("power", {}, "power is missing"),
        ("linear", {"power": 2}, "decay linear has none"),
        ("exponential", {"rate": -1}, "rate is -1"),
        ("step", {"steps": 1}, "steps is 1; allowed: 2 to the horizon, 5"),
        ("step", {"steps": 2.0}, "needs an integer"),
        ("constant", {}, "decay constant needs them equal"),
        ("table", {"table": (8, 7)}, "table has 2 budgets"),
        ("table", {"table": (8, 7, 9, 5, 4)}, r"table\[2\] is 9"),
        ("table", {"table": (7, 7, 6, 5, 4)}, "below max_exit_layer, 8"),
        ("table", {"table": (8, 7.0, 6, 5, 4)}, "needs a tuple of integers"),
    ],
)
def test_bad_parameters_are_refused(decay: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        budgets(decay, options)


def test_d3_treats_integral_products_as_integers() -> None:
    # In binary, 0.7 and therefore 10 · 0.7 are slightly too small.
    options = {"max_exit_layer": 10, "min_exit_layer": 1, "warmup_layers": 0, "alpha": 0.7}
    assert budgets("d3", options)[:3] == [10, 7, 4]


@pytest.mark.parametrize(("largest", "smallest"), [(24, 8), (12, 11), (12, 12), (66, 1)])
@pytest.mark.parametrize("alpha", [0.5, 0.9, 0.98, 0.999])
def test_d3_reaches_its_min_at_the_end_of_its_horizon(
    largest: int, smallest: int, alpha: float
) -> None:
    horizon = d3_horizon(largest, smallest, alpha)
    floors = [math.floor(largest * alpha**index) for index in range(horizon)]
    assert floors[-1] <= smallest
    assert all(floor > smallest for floor in floors[:-1])
