"""A request's schedule is its own, else the default, else the bundle's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skipdec.engines.errors import ScheduleError, SkipDecError
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.request_schedules import ScheduleResolver
from skipdec.runtime.schedule.text import format_schedule

FULL = ExitSchedule.full(6)
LINEAR = ExitSchedule(num_layers=6, max_exit_layer=4, min_exit_layer=2, horizon=9)


@pytest.mark.parametrize(
    ("own", "default", "wanted", "horizon"),
    [
        (FULL, None, "2x", 20),  # a constant depth has no horizon to inherit
        (LINEAR, None, "2x", 9),
        (FULL, None, "2x:horizon=7", 7),
        (FULL, "2x", None, 20),
        (FULL, "2x", "2x:horizon=7", 7),
        (LINEAR, None, None, 9),
    ],
)
def test_a_missing_horizon_is_the_bundles_or_max_tokens(
    own: ExitSchedule, default: str | None, wanted: str | None, horizon: int
) -> None:
    schedule = ScheduleResolver(6, own, 64, default).resolve(wanted, 20)
    assert format_schedule(schedule) == f"linear:max=4,min=2,warmup=1,horizon={horizon}"


def test_each_request_has_its_own_horizon() -> None:
    schedules = ScheduleResolver(6, FULL, 64).resolve_all("2x", [20, 4, 20])
    assert [schedule.horizon for schedule in schedules] == [20, 4, 20]


def test_a_text_only_needs_to_fit_the_requests() -> None:
    (schedule,) = ScheduleResolver(6, FULL, 64).resolve_all("step:max=4,min=2,steps=3", [20])
    assert (schedule.decay, schedule.horizon) == ("step", 20)


@pytest.mark.parametrize(
    "resolver", [ScheduleResolver(7, FULL, 64), ScheduleResolver(7, FULL, 64, LINEAR)]
)
def test_another_depth_is_refused_even_without_requests(resolver: ScheduleResolver) -> None:
    with pytest.raises(ScheduleError, match="is for 6 layers; the bundle has 7"):
        resolver.resolve_all(None, [])


@pytest.mark.parametrize("wanted", [2, {"num_layers": 6}, b"2x"])
def test_a_value_that_is_not_a_schedule_is_refused(wanted: object) -> None:
    with pytest.raises(ScheduleError, match="allowed: a text or ExitSchedule"):
        ScheduleResolver(6, FULL, 64).resolve(wanted, 4)


@pytest.mark.parametrize(
    "text", ["2x:horizon=65", "linear:max=4,min=2,horizon=1048576", "constant:max=4,horizon=65"]
)
def test_a_horizon_beyond_the_positions_is_refused(text: str) -> None:
    with pytest.raises(ScheduleError, match="allowed: 1 to 64, the bundle's positions"):
        ScheduleResolver(6, LINEAR, 64).resolve(text, 4)
    assert ScheduleResolver(6, LINEAR, 2**20).resolve(text, 4).horizon >= 65


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"plan": 3}',
        '{"horizon": "x"}',
        '{"horizon": 99, "decay": 3}',
        '{"horizon": 99, "decay": "d3", "alpha": "x"}',
        "full:horizon=3",
    ],
)
def test_an_invalid_text_is_refused(text: str) -> None:
    with pytest.raises(SkipDecError):
        ScheduleResolver(6, FULL, 64).resolve(text, 4)


def test_the_bundles_own_horizon_may_be_longer_than_its_positions() -> None:
    resolver = ScheduleResolver(6, LINEAR.changed(horizon=99), 64)
    assert resolver.resolve(None, 4).horizon == resolver.resolve("2x", 4).horizon == 99
    assert resolver.resolve(format_schedule(resolver.own), 4) == resolver.own
    with pytest.raises(ScheduleError, match="allowed: 1 to 99, the bundle's own"):
        resolver.resolve("2x:horizon=100", 4)


def test_a_long_horizon_computed_from_alpha_is_allowed() -> None:
    resolver = ScheduleResolver(6, FULL, 64)
    schedule = resolver.resolve("d3:max=6,min=2,alpha=0.99995", 4)
    assert schedule.horizon > 64
    assert resolver.resolve(format_schedule(schedule), 4) == schedule


def test_a_horizon_from_max_tokens_ends_at_the_positions() -> None:
    assert ScheduleResolver(6, FULL, 64).resolve("2x", 10**18).horizon == 64


def test_a_text_is_cached_and_a_file_is_read_each_time(tmp_path: Path) -> None:
    resolver = ScheduleResolver(6, FULL, 64)
    assert resolver.resolve("2x", 20) is resolver.resolve("2x", 20)
    assert resolver.resolve("2x", 21) is not resolver.resolve("2x", 20)
    path = tmp_path / "schedule.json"
    for horizon in (9, 10):
        path.write_text(json.dumps(LINEAR.changed(horizon=horizon).to_document()))
        assert resolver.resolve(str(path), 20).horizon == horizon
