"""Exit schedules have nested plans of the right sizes, last indices and checked fields."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skipdec.engines.errors import ScheduleError
from skipdec.runtime.schedule import ExitSchedule, realised_depth
from skipdec.runtime.schedule.placements import PLACEMENTS

# No deadline, as the machine may be busy. The same examples each time, nothing kept on disk.
repeatable = settings(deadline=None, derandomize=True, database=None)

NESTED = tuple(placement for placement in PLACEMENTS if placement != "unified")


@st.composite
def schedules(draw: st.DrawFn, decays: tuple[str, ...] = ("linear",)) -> ExitSchedule:
    num_layers = draw(st.integers(2, 40))
    smallest = draw(st.integers(2, num_layers))
    largest = draw(st.integers(smallest, num_layers))
    horizon = draw(st.integers(2, 200))
    decay = draw(st.sampled_from(decays))
    parameters: dict[str, Any] = {
        "power": {"power": draw(st.floats(0.1, 20))},
        "exponential": {"rate": draw(st.floats(0.01, 50))},
        "step": {"steps": draw(st.integers(2, horizon))},
        "d3": {"alpha": draw(st.floats(0.01, 0.999))},
    }.get(decay, {})
    warmup, placement = draw(st.integers(0, smallest - 1)), draw(st.sampled_from(NESTED))
    if placement == "d3":
        parameters["tail"] = draw(st.integers(1, smallest - warmup))
    return ExitSchedule(
        num_layers=num_layers,
        max_exit_layer=largest,
        min_exit_layer=largest if decay == "constant" else smallest,
        warmup_layers=warmup,
        horizon=horizon,
        decay=decay,
        placement=placement,
        **parameters,
    )


ALL_DECAYS = ("linear", "power", "exponential", "cosine", "step", "constant")


def test_worked_example_of_six_layers() -> None:
    schedule = ExitSchedule(num_layers=6, max_exit_layer=4, min_exit_layer=2, horizon=4)
    assert [schedule.plan(i).layers for i in range(5)] == [
        (0, 3, 4, 5),
        (0, 4, 5),
        (0, 4, 5),
        (0, 5),
        (0, 5),
    ]
    assert schedule.full_plan.layers == (0, 1, 2, 3, 4, 5)
    assert [schedule.last_index(layer) for layer in range(6)] == [None, -1, -1, 0, 2, None]
    assert [(run.start, run.stop, len(run.plan)) for run in schedule.segments] == [
        (0, 1, 4),
        (1, 3, 3),
        (3, None, 2),
    ]
    assert realised_depth([6, 4, 3, 3, 2]) == 3.0


@repeatable
@given(schedules(ALL_DECAYS))
def test_budgets_fall_from_max_to_min(schedule: ExitSchedule) -> None:
    assert schedule.budget(0) == schedule.max_exit_layer
    assert schedule.budget(schedule.horizon - 1) == schedule.min_exit_layer
    assert schedule.budget(schedule.horizon * 10) == schedule.min_exit_layer
    budgets = [schedule.budget(index) for index in range(schedule.horizon)]
    assert budgets == sorted(budgets, reverse=True)


@repeatable
@given(schedules((*ALL_DECAYS, "d3")))
def test_last_index_agrees_with_the_plans(schedule: ExitSchedule) -> None:
    tail = schedule.horizon + 2
    for layer in range(schedule.num_layers):
        runs = [i for i in range(tail) if layer in schedule.plan(i).layers]
        last = schedule.last_index(layer)
        assert (tail - 1 if last is None else last) == max(runs, default=-1)


@repeatable
@given(schedules(("linear",)))
def test_the_linear_mean_is_half_way_plus_half_a_layer_per_tie(schedule: ExitSchedule) -> None:
    half_way = (schedule.max_exit_layer + schedule.min_exit_layer) / 2
    fall, last = schedule.max_exit_layer - schedule.min_exit_layer, schedule.horizon - 1
    ties = sum((2 * fall * i) % (2 * last) == last for i in range(schedule.horizon))
    assert schedule.average_budget() == pytest.approx(half_way + 0.5 * ties / schedule.horizon)


@repeatable
@given(schedules((*ALL_DECAYS, "d3")))
def test_json_has_only_the_keys_in_use(schedule: ExitSchedule) -> None:
    document = schedule.to_document()
    extra = {"power": {"power"}, "exponential": {"rate"}, "step": {"steps"}, "d3": {"alpha"}}
    tail = {"tail"} if schedule.placement == "d3" else set()
    assert (
        set(document)
        == {
            "num_layers",
            "max_exit_layer",
            "min_exit_layer",
            "warmup_layers",
            "horizon",
            "decay",
            "placement",
        }
        | extra.get(schedule.decay, set())
        | tail
    )


def test_full_runs_all_layers() -> None:
    schedule = ExitSchedule.full(3)
    assert schedule.is_full
    assert schedule.plan(999) == schedule.full_plan
    assert [schedule.last_index(layer) for layer in range(3)] == [None] * 3
    assert ExitSchedule.full(1).plan(0).layers == (0,)


def test_the_average_includes_tokens_after_the_horizon() -> None:
    schedule = ExitSchedule(num_layers=6, max_exit_layer=4, min_exit_layer=2, horizon=2)
    assert [schedule.average_budget(n) for n in (1, 2, 4)] == [4.0, 3.0, 2.5]


def test_a_layer_that_resumes_is_refused_with_its_position() -> None:
    with pytest.raises(ScheduleError, match="token 2 runs layer 8, which token 1 did not"):
        ExitSchedule(
            num_layers=12,
            max_exit_layer=6,
            min_exit_layer=3,
            horizon=4,
            decay="table",
            table=(6, 4, 5, 3),
        )


def test_all_problems_are_raised_at_once() -> None:
    with pytest.raises(ScheduleError) as caught:
        ExitSchedule(
            num_layers=6,
            max_exit_layer=7,
            min_exit_layer=0,
            warmup_layers=-1,
            horizon=0,
            decay="sine",
            placement="left",
        )
    assert len(caught.value.problems) == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"min_exit_layer": 1}, "above warmup_layers, 1"),
        ({"min_exit_layer": 5}, "min_exit_layer is 5; allowed: 1 to max_exit_layer, 4"),
        ({"max_exit_layer": True}, "max_exit_layer is True; allowed: an integer"),
        ({"horizon": 64.0}, "horizon is 64.0; allowed: an integer"),
        ({"horizon": 2**40}, "allowed: 1 to 1048576"),
        ({"num_layers": 10**9}, "num_layers is 1000000000; allowed: 1 to 4096"),
        ({"decay": None}, "decay is None; allowed: linear"),
        ({"placement": ["top"]}, "allowed: top, bottom"),
        ({"placement": "d3"}, "tail is missing; placement d3 needs it"),
        ({"placement": "d3", "tail": 0}, "tail is 0; placement d3 needs an integer, 1 or more"),
        ({"placement": "d3", "tail": 2}, "min_exit_layer is 2; allowed with placement d3: 3 or"),
        ({"tail": 2}, "tail is 2; placement top has none"),
        ({"decay": "d3"}, "alpha is missing; decay d3 needs it"),
        ({"decay": "d3", "alpha": 1.0}, "alpha is 1.0; decay d3 needs a number above 0 and below"),
        ({"alpha": 0.9}, "alpha is 0.9; decay linear has none"),
        ({"placement": "hierarchical", "warmup_layers": 2}, "placement hierarchical: above"),
        ({"speed": 2}, "key 'speed' is unknown"),
    ],
)
def test_bad_documents_are_refused(change: dict[str, Any], message: str) -> None:
    document = {"num_layers": 6, "max_exit_layer": 4, "min_exit_layer": 2, "horizon": 4} | change
    with pytest.raises(ScheduleError, match=message):
        ExitSchedule.from_document(document)


@pytest.mark.parametrize("document", [None, [], "2x", 3])
def test_a_document_that_is_not_an_object_is_refused(document: object) -> None:
    with pytest.raises(ScheduleError, match="allowed: a JSON object"):
        ExitSchedule.from_document(document)  # type: ignore[arg-type]


def test_missing_keys_are_listed_together() -> None:
    with pytest.raises(ScheduleError) as caught:
        ExitSchedule.from_document({"num_layers": 6})
    assert len(caught.value.problems) == 3


def test_a_negative_position_or_unknown_layer_is_refused() -> None:
    with pytest.raises(IndexError, match="-1"):
        ExitSchedule.full(2).plan(-1)
    with pytest.raises(IndexError, match="layer is 2"):
        ExitSchedule.full(2).last_index(2)


def test_a_single_token_has_no_realised_depth() -> None:
    assert realised_depth([24]) is None


def test_schedules_with_parameters_can_be_pickled_and_changed() -> None:
    schedule = ExitSchedule(
        **{"num_layers": 6, "max_exit_layer": 4, "min_exit_layer": 2, "horizon": 4},
        **{"decay": "power", "power": 2},
    )
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    assert schedule.changed(power=3).to_document()["power"] == 3
    assert "power" not in schedule.changed(decay="linear").to_document()
