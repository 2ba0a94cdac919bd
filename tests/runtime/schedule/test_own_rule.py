"""A decay or a placement is one class and one line of its registry, with parameters of its own."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest
from registration import register

from skipdec import ExitSchedule, Generator, SamplingParams
from skipdec.calib.fitting.space import Point, SearchSpace, SpaceConfig, default_choices
from skipdec.engines.errors import ScheduleError
from skipdec.runtime.schedule.decays import DECAYS, Decay
from skipdec.runtime.schedule.placements import PLACEMENTS, Placement
from skipdec.runtime.schedule.rule import ScheduleFields
from skipdec.runtime.schedule.text import format_schedule, parse_schedule

TEXT = "hold:max=5,min=2,warmup=1,horizon=4,placement=either,held=2,ends=0/1"


@dataclass(frozen=True)
class Hold(Decay):
    """Max for ``held`` tokens, then min."""

    searched = ("held=2",)

    held: int

    def problems(self, schedule: ScheduleFields) -> list[str]:
        return (
            [] if self.held <= schedule.horizon else [f"held is {self.held}; the horizon is less"]
        )

    def budget(self, schedule: ScheduleFields, index: int) -> int:
        return schedule.max_exit_layer if index < self.held else schedule.min_exit_layer


@dataclass(frozen=True)
class Either(Placement):
    """Layers from the bottom (0) and the top (1) in the order of ``ends``, again and again."""

    searched = ("ends=0/1",)

    ends: tuple[int, ...]

    def layers(self, schedule: ScheduleFields, budget: int) -> tuple[int, ...]:
        waiting = list(range(schedule.num_layers))
        chosen = (waiting.pop(-self.ends[turn % len(self.ends)]) for turn in range(budget))
        return tuple(sorted(chosen))


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, DECAYS, "hold", Hold)
    register(monkeypatch, PLACEMENTS, "either", Either)


def test_python_text_and_json_agree() -> None:
    schedule = ExitSchedule(
        num_layers=6,
        max_exit_layer=5,
        min_exit_layer=2,
        horizon=4,
        decay="hold",
        held=2,
        placement="either",
        ends=(0, 1),
    )
    assert [schedule.plan(index).layers for index in (0, 1, 2, 9)] == [
        (0, 1, 2, 4, 5),
        (0, 1, 2, 4, 5),
        (0, 5),
        (0, 5),
    ]
    assert (schedule.held, schedule.ends, schedule.power) == (2, (0, 1), None)
    assert parse_schedule(TEXT, num_layers=6) == schedule
    assert format_schedule(schedule) == TEXT
    document = json.loads(json.dumps(schedule.to_document()))
    assert (document["held"], document["ends"]) == (2, [0, 1])
    assert ExitSchedule.from_document(document) == schedule
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    assert schedule.changed(ends=(0,)).plan(0).layers == (0, 1, 2, 3, 4)
    assert "held" not in schedule.changed(decay="linear").to_document()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT.replace("held=2", "held=9"), "held is 9; the horizon is less"),
        (TEXT.replace("held=2", "held=long"), "held is 'long'; allowed: an integer"),
        (TEXT.replace(",held=2", ""), "held is missing; decay hold needs it"),
        (TEXT.replace("either", "top"), r"ends is \(0, 1\); placement top has none"),
        ("linear:max=5,min=2,horizon=4,held=2", "held is 2; decay linear has none"),
    ],
)
def test_its_parameters_are_refused_as_any_others(text: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        parse_schedule(text, num_layers=6)


def test_a_bundle_runs_it(exported: Callable[..., Path]) -> None:
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    with Generator.open(exported("pre_norm"), threads=1) as generator:
        (result,) = generator.generate([[5, 9, 11]], params, schedule=TEXT)
    assert result.outputs[0].layers_per_token == (6, 5, 5, 2, 2)


def test_a_fit_may_choose_it() -> None:
    assert {"hold:held=2"} <= set(default_choices(DECAYS))
    config = SpaceConfig(decays=("hold:held=2",), placements=("either:ends=0/1",))
    space = SearchSpace(config, num_layers=6, horizon=4)
    point = Point(5, 2, 1, "hold:held=2", "either:ends=0/1")
    assert point in space.points()
    assert space.schedule(point) == parse_schedule(TEXT, num_layers=6)


def test_no_parameter_is_a_field_and_no_decay_shares_one_with_a_placement() -> None:
    """Keys of one JSON object; rules of one registry may share a name, of one type."""
    parameters = [
        {name for rule in registry for name in registry.load(rule).parameters()}
        for registry in (DECAYS, PLACEMENTS)
    ]
    fields = {"max", "min", "warmup", *ScheduleFields.__dataclass_fields__}
    assert sum(map(len, [*parameters, fields])) == len(fields.union(*parameters))
    assert set(chain(*parameters)) >= {"power", "tail", "held", "ends"}


def test_an_unknown_keyword_is_refused_with_the_ones_there_are() -> None:
    with pytest.raises(
        ScheduleError, match=r"key 'speed' is unknown; allowed: num_.*, held.* ends"
    ):
        ExitSchedule(num_layers=6, max_exit_layer=5, min_exit_layer=2, horizon=4, speed=2)
    with pytest.raises(AttributeError, match="speed"):
        _ = ExitSchedule.full(6).speed
