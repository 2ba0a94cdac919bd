"""Placements match the worked examples of their docstrings, in sizes, ends and nesting."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skipdec.engines.errors import ScheduleError
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.placements import PLACEMENTS

repeatable = settings(deadline=None, derandomize=True, database=None)


def constant(
    placement: str, budget: int, num_layers: int, warmup: int = 1, tail: int = 1
) -> ExitSchedule:
    return ExitSchedule(
        num_layers=num_layers,
        max_exit_layer=budget,
        min_exit_layer=budget,
        warmup_layers=warmup,
        horizon=1,
        decay="constant",
        placement=placement,
        tail=tail if placement == "d3" else None,
    )


EXAMPLES = {  # of 12 layers
    ("top", 1): {6: (0, 7, 8, 9, 10, 11), 4: (0, 9, 10, 11)},
    ("bottom", 1): {6: (0, 1, 2, 3, 4, 5), 4: (0, 1, 2, 3)},
    ("unified", 1): {4: (0, 4, 7, 11), 5: (0, 3, 6, 8, 11), 6: (0, 2, 4, 7, 9, 11)},
    ("unified", 0): {4: (0, 4, 7, 11)},
    ("unified", 3): {5: (0, 1, 2, 7, 11)},
    ("unified-nested", 1): {4: (0, 5, 8, 11), 5: (0, 2, 5, 8, 11), 6: (0, 2, 5, 8, 9, 11)},
    ("hierarchical", 1): {
        7: (0, 1, 3, 5, 7, 9, 11),
        5: (0, 3, 7, 9, 11),
        4: (0, 3, 7, 11),
    },
    ("d3", 2): {9: (0, 1, 2, 3, 7, 8, 9, 10, 11), 6: (0, 1, 8, 9, 10, 11), 5: (0, 1, 9, 10, 11)},
}


@pytest.mark.parametrize(("placement", "warmup"), EXAMPLES)
def test_each_placement_matches_its_worked_example(placement: str, warmup: int) -> None:
    for budget, layers in EXAMPLES[placement, warmup].items():
        schedule = constant(placement, budget, 12, warmup, tail=3)
        assert schedule.plan(0).layers == layers


def test_every_registered_placement_has_a_worked_example_here() -> None:
    assert {placement for placement, _ in EXAMPLES} == set(PLACEMENTS)


@pytest.mark.parametrize("placement", PLACEMENTS)
@repeatable
@given(num_layers=st.integers(2, 70), warmup=st.integers(0, 8), tail=st.integers(1, 8))
def test_layer_sets_have_the_right_size_ends_and_nesting(
    placement: str, num_layers: int, warmup: int, tail: int
) -> None:
    core = warmup + (tail if placement == "d3" else 1)
    sets = [
        constant(placement, budget, num_layers, warmup, tail).plan(0).layers
        for budget in range(max(2, core), num_layers + 1)
    ]
    for layers in sets:
        assert list(layers) == sorted(set(layers))
        assert set(range(warmup)) <= set(layers) <= set(range(num_layers))
        assert placement == "bottom" or layers[-1] == num_layers - 1
    assert [len(layers) for layers in sets] == list(range(max(2, core), num_layers + 1))
    if placement != "unified":
        assert all(set(small) <= set(large) for small, large in pairwise(sets))


@repeatable
@given(num_layers=st.integers(2, 70), data=st.data())
def test_unified_gaps_differ_by_one_at_most(num_layers: int, data: st.DataObject) -> None:
    budget = data.draw(st.integers(2, num_layers))
    layers = constant("unified", budget, num_layers).plan(0).layers
    gaps = {after - before for before, after in pairwise(layers)}
    assert layers[0] == 0
    assert max(gaps) - min(gaps) <= 1


def test_unified_is_refused_where_budgets_fall() -> None:
    with pytest.raises(ScheduleError, match=r"token 1 runs layer 3, which token 0 did not.*nested"):
        ExitSchedule(
            num_layers=12, max_exit_layer=6, min_exit_layer=5, horizon=2, placement="unified"
        )


@pytest.mark.parametrize("placement", ["unified", "unified-nested"])
def test_unified_placements_need_a_budget_of_two(placement: str) -> None:
    with pytest.raises(ScheduleError, match="2 or more, the first and the last layer always run"):
        constant(placement, 1, 12, warmup=0)
