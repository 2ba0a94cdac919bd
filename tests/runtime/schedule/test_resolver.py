"""A request's schedule is what is asked for, else the default, else the bundle's own."""

from __future__ import annotations

import pytest

from skipdec.engines.errors import ScheduleError
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.resolver import ScheduleResolver
from skipdec.runtime.schedule.text import format_schedule

FULL = ExitSchedule.full(6)
LINEAR = ExitSchedule(num_layers=6, max_exit_layer=4, min_exit_layer=2, horizon=9)


@pytest.mark.parametrize(
    ("own", "default", "wanted", "horizon"),
    [
        (FULL, None, "2x", 20),  # a constant depth lends no horizon
        (LINEAR, None, "2x", 9),
        (FULL, None, "2x:horizon=7", 7),
        (FULL, "2x", None, 20),
        (FULL, "2x", "2x:horizon=7", 7),
        (LINEAR, None, None, 9),
    ],
)
def test_horizon_is_named_or_lent_or_the_requests_own(
    own: ExitSchedule, default: str | None, wanted: str | None, horizon: int
) -> None:
    schedule = ScheduleResolver(6, own, default).resolve(wanted, 20)
    assert format_schedule(schedule) == f"linear:max=4,min=2,warmup=1,horizon={horizon}"


def test_each_request_has_its_own() -> None:
    schedules = ScheduleResolver(6, FULL).resolve_all("2x", [20, 4, 20])
    assert [schedule.horizon for schedule in schedules] == [20, 4, 20]


def test_a_text_need_fit_the_requests_alone() -> None:
    (schedule,) = ScheduleResolver(6, FULL).resolve_all("step:max=4,min=2,steps=3", [20])
    assert (schedule.decay, schedule.horizon) == ("step", 20)


@pytest.mark.parametrize("resolver", [ScheduleResolver(7, FULL), ScheduleResolver(7, FULL, LINEAR)])
def test_another_depth_is_refused_before_there_are_requests(resolver: ScheduleResolver) -> None:
    with pytest.raises(ScheduleError, match="is for 6 layers; the bundle has 7"):
        resolver.resolve_all(None, [])


@pytest.mark.parametrize("wanted", [2, {"num_layers": 6}, b"2x"])
def test_what_is_no_schedule_is_refused(wanted: object) -> None:
    with pytest.raises(ScheduleError, match="allowed: a text or ExitSchedule"):
        ScheduleResolver(6, FULL).resolve(wanted, 4)
