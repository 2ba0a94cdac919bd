"""Test the search space of a fit: its schedules and their neighbours."""

from __future__ import annotations

from dataclasses import replace

import pytest

from skipdec.calib.fitting.space import Point, SearchSpace, SpaceConfig
from skipdec.engines.errors import ScheduleError, UsageError
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.text import parse_schedule

ONLY_TOP = SpaceConfig(decays=("linear",), placements=("top",), warmups=(1,))


def schedules(space: SearchSpace) -> set[ExitSchedule]:
    return {schedule for point in space.points() if (schedule := space.schedule(point))}


def test_a_choice_named_twice_counts_once() -> None:
    config = SpaceConfig(decays=("linear", "linear"), warmups=(1, 0, 1), prompts=("full", "full"))
    assert (config.decays, config.warmups, config.prompts) == (("linear",), (1, 0), ("full",))


def test_every_pair_above_the_warm_up_occurs_once() -> None:
    space = SearchSpace(ONLY_TOP, num_layers=6, horizon=9)
    found = {(entry.max_exit_layer, entry.min_exit_layer) for entry in schedules(space)}
    assert found == {(high, low) for high in range(2, 7) for low in range(2, high + 1)}
    assert {entry.horizon for entry in schedules(space)} == {1, 9}, "1 if constant"


def test_schedules_that_run_equal_layers_occur_once() -> None:
    space = SearchSpace(SpaceConfig(), num_layers=6, horizon=9)
    first, second = (space.schedule(Point(4, 2, warmup, "linear", "bottom")) for warmup in (0, 3))
    assert first is second is not None
    assert space.schedule(Point(6, 6, 2, "cosine", "unified")) == ExitSchedule.full(6)
    found = [entry.segments for entry in schedules(space)]
    assert len(found) == len(set(found))


def test_choices_with_options_reach_the_schedule() -> None:
    space = SearchSpace(
        SpaceConfig(decays=("power:power=2",), placements=("d3:tail=2",)), num_layers=12, horizon=9
    )
    text = "power:max=9,min=5,warmup=1,horizon=9,power=2,placement=d3,tail=2"
    assert space.schedule(Point(9, 5, 1, "power:power=2", "d3:tail=2")) == parse_schedule(
        text, num_layers=12
    )


def test_incompatible_choices_make_no_schedule() -> None:
    space = SearchSpace(SpaceConfig(), num_layers=12, horizon=9)
    assert space.schedule(Point(8, 4, 1, "linear", "unified")) is None
    assert space.schedule(Point(4, 4, 1, "linear", "unified")) is not None


def test_neighbours_differ_in_one_step() -> None:
    space = SearchSpace(
        SpaceConfig(decays=("linear", "cosine"), placements=("top", "bottom")),
        num_layers=12,
        horizon=9,
    )
    start = Point(8, 4, 1, "linear", "top")
    neighbours = set(space.neighbours(start))
    assert Point(9, 4, 1, "linear", "top") in neighbours
    assert Point(7, 5, 1, "linear", "top") in neighbours
    assert Point(8, 4, 2, "linear", "top") in neighbours
    assert Point(8, 4, 1, "cosine", "top") in neighbours
    assert Point(8, 4, 1, "linear", "bottom") in neighbours
    assert start not in neighbours
    assert len(neighbours) == 8 + 2 + 1 + 1
    assert all(start in space.neighbours(point) for point in neighbours)
    at_the_end = list(space.neighbours(Point(12, 12, 3, "linear", "top")))
    assert max(point.max_exit_layer for point in at_the_end) == 12


def test_prompt_decay_is_searched_only_where_it_changes_layers() -> None:
    config = SpaceConfig(decays=("linear",), placements=("top", "unified"), warmups=(1,))
    space = SearchSpace(config.updated(prompts=("full", "decay")), num_layers=12, horizon=9)
    falling = space.schedule(Point(8, 4, 1, "linear", "top", "decay"))
    assert falling == parse_schedule(
        "linear:max=8,min=4,warmup=1,horizon=9,prompt=decay", num_layers=12
    )
    assert space.schedule(Point(8, 4, 1, "linear", "top")) != falling
    at_full_depth = Point(12, 4, 1, "linear", "top")
    assert space.schedule(replace(at_full_depth, prompt="decay")) is space.schedule(at_full_depth)
    assert space.schedule(Point(4, 4, 1, "linear", "unified", "decay")) is None, "holes"
    assert Point(8, 4, 1, "linear", "top", "decay") in space.neighbours(
        Point(8, 4, 1, "linear", "top")
    )
    assert {schedule.prompt for schedule in space.fastest()} == {"decay"}
    order = [point.prompt for point in space.shuffled(seed=0)]
    assert order == sorted(order, reverse=True), "the first named rule comes first"


def test_deep_models_take_every_second_exit_layer() -> None:
    space = SearchSpace(ONLY_TOP, num_layers=48, horizon=9)
    assert {point.max_exit_layer for point in space.points()} == set(range(2, 49, 2))


def test_the_fastest_schedule_has_the_fewest_layers_that_fit() -> None:
    config = SpaceConfig(decays=("linear",), placements=("d3:tail=3",), warmups=(2,))
    (fastest,) = SearchSpace(config, num_layers=12, horizon=9).fastest()
    assert fastest.average_budget() == 5


def test_there_is_one_fastest_schedule_per_set_of_layers() -> None:
    fastest = SearchSpace(SpaceConfig(), num_layers=12, horizon=9).fastest()
    layers = [[segment.plan.layers for segment in schedule.segments] for schedule in fastest]
    assert layers == [[(11,)], [(0,)]], "the last layer at top, else the first"


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"decays": ("power",)}, "power is missing"),
        ({"placements": ("d3",)}, "tail is missing"),
        ({"warmups": (12,)}, "above warmup, 12"),
    ],
)
def test_choices_without_any_schedule_are_refused(
    choices: dict[str, tuple[str, ...]], message: str
) -> None:
    config = SpaceConfig(**{"placements": ("top",), **choices})  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match=message):
        SearchSpace(config, num_layers=12, horizon=9)


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_defaults_too_large_for_the_model_are_dropped(num_layers: int) -> None:
    space = SearchSpace(SpaceConfig(), num_layers=num_layers, horizon=9)
    budgets = {(one.max_exit_layer, one.min_exit_layer) for one in schedules(space)}
    assert budgets == {
        (high, low) for high in range(1, num_layers + 1) for low in range(1, high + 1)
    }


def test_empty_and_negative_choices_are_refused_together() -> None:
    with pytest.raises(UsageError, match="2 problems"):
        SpaceConfig(decays=(), warmups=(-1,))


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (
            {"decays": ("lin:power=2",)},
            "decays is 'lin:power=2'; did you mean 'linear'? allowed: linear, cosine, power, "
            "exponential, step, constant, d3",
        ),
        ({"decays": ("2x",)}, "decays is '2x'; allowed: linear, "),
        ({"decays": ("table:table=4/2",)}, "decays is 'table:table=4/2'; allowed: linear, "),
        ({"placements": ("middle",)}, "placements is 'middle'; allowed: top, bottom, "),
        ({"prompts": ("falling",)}, "prompts is 'falling'; allowed: full, decay"),
    ],
)
def test_unknown_names_are_refused_with_the_allowed_names(
    choices: dict[str, tuple[str, ...]], message: str
) -> None:
    with pytest.raises(UsageError) as error:
        SpaceConfig(**choices)  # type: ignore[arg-type]
    assert message in str(error.value)
