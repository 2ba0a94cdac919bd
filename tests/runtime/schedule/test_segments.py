"""Segments equal those of a walk over every token, at a cost independent of the horizon."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest

from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.decays import DECAYS, budget_of
from skipdec.runtime.schedule.fields import ScheduleFields

DEEP = {"num_layers": 24, "max_exit_layer": 23, "min_exit_layer": 2}
FALLING: list[dict[str, Any]] = [
    {"decay": "linear"},
    {"decay": "cosine"},
    {"decay": "power", "power": 2},
    {"decay": "power", "power": 0.3},
    {"decay": "power", "power": 1e-300},
    {"decay": "exponential", "rate": 3},
    {"decay": "exponential", "rate": 1e308},
    {"decay": "step", "steps": 2},
    {"decay": "constant", "max_exit_layer": 2},
    {"decay": "d3", "alpha": 0.9},
    {"decay": "d3", "alpha": 1 - 1e-12},
]


@pytest.mark.parametrize("horizon", [2, 3, 40, 1000])
@pytest.mark.parametrize(
    "fields", [*FALLING, {"decay": "table", "table": (23, 7, 7, 2)}], ids=lambda fields: str(fields)
)
def test_segments_equal_those_of_a_walk(fields: dict[str, Any], horizon: int) -> None:
    horizon = len(fields.get("table", ())) or horizon
    schedule = ExitSchedule(**(DEEP | fields | {"horizon": horizon}))
    walked = [budget_of(schedule, index) for index in range(horizon)]
    walked.append(schedule.min_exit_layer)
    starts = [next(run) for _, run in groupby(range(horizon + 1), walked.__getitem__)]
    assert [segment.start for segment in schedule.segments] == starts
    assert [segment.stop for segment in schedule.segments] == [*starts[1:], None]
    assert [schedule.budget(index) for index in range(horizon + 1)] == walked
    assert schedule.average_budget() == sum(walked[:-1]) / horizon


@pytest.mark.parametrize("fields", FALLING, ids=lambda fields: str(fields))
def test_a_million_tokens_compute_few_budgets(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rule, indices = DECAYS[fields["decay"]], []

    def counted(schedule: ScheduleFields, index: int, value: Any) -> int:  # noqa: ANN401
        indices.append(index)
        return rule.budget(schedule, index, value)

    monkeypatch.setitem(DECAYS, fields["decay"], replace(rule, budget=counted))  # type: ignore[misc]
    ExitSchedule(**(DEEP | fields | {"horizon": 2**20}))
    assert len(indices) < 600
