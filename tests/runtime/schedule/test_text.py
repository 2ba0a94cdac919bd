"""Schedules are parsed from presets, every decay's form and files, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skipdec.engines.errors import ScheduleError
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.plot import plot_schedule
from skipdec.runtime.schedule.request_schedules import default_horizon
from skipdec.runtime.schedule.text import (
    document_text,
    format_schedule,
    parse_schedule,
    read_document,
)

FIELDS = {"num_layers": 3, "max_exit_layer": 2, "min_exit_layer": 2, "horizon": 4}


@pytest.mark.parametrize(
    ("num_layers", "text", "message"),
    [
        (12, "7x", "largest possible: 6x"),
        (24, "100x", "largest possible: 13x"),
        (12, "1x", "smallest whole one: 2x"),
        (1, "2x", "no preset fits"),
        (12, "0x", "largest possible: 6x"),
        (12, "9" * 40 + "x", "largest possible: 6x"),
        (12, "9" * 41 + "x", "has 41 digits; allowed: 40"),
        (12, "9" * 5000 + "x", "has 5,000 digits"),
        (12, "1." + "0" * 400 + "x", "has 402 digits"),
    ],
)
def test_a_preset_that_does_not_fit_names_the_largest(
    num_layers: int, text: str, message: str
) -> None:
    with pytest.raises(ScheduleError, match=message):
        parse_schedule(text, num_layers=num_layers, horizon=64)


@pytest.mark.parametrize(
    "text",
    [
        "full",
        "linear:max=16,min=8,warmup=1,horizon=64",
        "linear:max=16,min=8,warmup=0,horizon=64,placement=bottom",
        "power:max=16,min=8,warmup=1,horizon=64,power=2",
        "power:max=16,min=8,warmup=1,horizon=64,power=0.5",
        "exponential:max=16,min=8,warmup=1,horizon=64,rate=3",
        "cosine:max=16,min=8,warmup=2,horizon=64",
        "step:max=16,min=8,warmup=1,horizon=64,steps=4",
        "constant:max=12,min=12,warmup=1,horizon=1",
        "table:max=16,min=8,warmup=1,horizon=3,table=16/12/8",
        "linear:max=8,min=4,warmup=1,horizon=9,placement=d3,tail=2,prompt=decay",
    ],
)
def test_canonical_text_round_trips(text: str) -> None:
    assert format_schedule(parse_schedule(text, num_layers=24)) == text


@pytest.mark.parametrize(
    ("short", "canonical"),
    [
        ("2x:horizon=32", "linear:max=16,min=8,warmup=1,horizon=32"),
        ("2x:placement=bottom", "linear:max=16,min=8,warmup=1,horizon=99,placement=bottom"),
        ("linear:max=9,min=4", "linear:max=9,min=4,warmup=1,horizon=99"),
        ("constant:max=12", "constant:max=12,min=12,warmup=1,horizon=1"),
        ("table:table=9/9/4", "table:max=9,min=4,warmup=1,horizon=3,table=9/9/4"),
        (
            "d3:max=12,min=5,alpha=0.9",
            "d3:max=12,min=5,warmup=1,horizon=8,alpha=0.9",
        ),
        (
            "4x:placement=d3,tail=2",
            "linear:max=8,min=4,warmup=1,horizon=99,placement=d3,tail=2",
        ),
        (
            "constant:max=6,placement=unified",
            "constant:max=6,min=6,warmup=1,horizon=1,placement=unified",
        ),
        ("linear: max = 9, min = 4", "linear:max=9,min=4,warmup=1,horizon=99"),
    ],
)
def test_short_forms_have_a_canonical_form(short: str, canonical: str) -> None:
    assert format_schedule(parse_schedule(short, num_layers=24, horizon=99)) == canonical


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("twice", r"^schedule 'twice' \| is unknown; allowed: full, 2x"),
        ("twice:max=3", r"^schedule 'twice:max=3' \| 'twice' is unknown; allowed: full, 2x"),
        ("unified:max=3", "decays: linear, cosine, power, exponential, step, constant, table, d3"),
        ("", "is unknown"),
        ("full:max=3", "option 'max=3' is unknown; allowed: none"),
        ("linear:maximum=16,min=8,horizon=4", "option 'maximum=16' is unknown"),
        ("linear:max=16,max=8,min=4", "given twice"),
        ("linear:max=many,min=8,horizon=4", "max is 'many'; allowed: an integer"),
        ("linear:max=16", "min is missing"),
        ("2x", "horizon is missing; add it, e.g. horizon=64"),
        ("2x:max=3", "allowed: horizon=, placement=, tail=, prompt="),
        ("2x:horizon=64,placement=unified", "token 4 runs layer .* take the decay constant"),
        ("2x:horizon=64,placement=d3", "tail is missing"),
        ("2x:horizon=64,tail=2", "tail is 2; placement top has none"),
        ("d3:max=24,min=8", "alpha is missing"),
        ("d3:max=24,min=8,alpha=1", "alpha is 1; decay d3 needs a number above 0 and below 1"),
        ("table:table=9-4", "allowed: integers, e.g. 16/16/12/8"),
        ("linear:max=30,min=8,horizon=4", "max is 30; allowed: 1 to the model's layers, 24"),
        ("linear:max=6,min=8,horizon=4", "min is 8; allowed: 1 to max, 6"),
        ("table:table=8/9/4", r"table\[0\] is 8, below max, 9; .* budgets never grow"),
        ("linear:max=9,min=8,horizon=4,placement=max_exit_layer", "placement is 'max_exit_layer'"),
        ("d3:min=1,alpha=0.5,max=1" + "0" * 400, "max is 1000"),
    ],
)
def test_bad_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        parse_schedule(text, num_layers=24)


@pytest.mark.parametrize(
    "text",
    [
        "x" * 10**6,
        "2x:" + "a," * 10**5,
        "table:table=" + "/".join(["24", "8"] * 10**4),
        "table:max=9,min=8,horizon=4,table=" + "/".join(["24"] * 10**4),
        "linear:min=2,horizon=4,max=" + "9" * 4000,
        "linear:min=2,horizon=4,max=" + "9" * 9000,
    ],
    ids=lambda text: str(text)[:30],
)
def test_an_error_about_a_long_text_is_short(text: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse_schedule(text, num_layers=24)
    assert len(str(caught.value)) < 4000


@pytest.mark.parametrize("text", [None, 2, b"2x", {"max": 3}])
def test_a_value_that_is_not_a_text_is_refused(text: Any) -> None:  # noqa: ANN401
    with pytest.raises(ScheduleError, match=r"allowed: a text, e\.g\. full, 2x"):
        parse_schedule(text, num_layers=24)


@pytest.mark.parametrize("text", ["full", "2x", "linear:max=4,min=2,horizon=64"])
def test_a_number_of_layers_that_is_none_is_refused(text: str) -> None:
    for wrong in ("12", 12.0, None):
        with pytest.raises(ScheduleError, match=r"num_layers \| is .*; allowed: an integer"):
            parse_schedule(text, num_layers=wrong, horizon=64)  # type: ignore[arg-type]
    assert parse_schedule("2x", num_layers=np.int64(12), horizon=64).num_layers == 12  # type: ignore[arg-type]


FILES: dict[str, Callable[[ExitSchedule], str]] = {
    "the object alone": lambda schedule: json.dumps(schedule.to_document()),
    "of a bundle": document_text,
}


@pytest.mark.parametrize("form", FILES)
def test_a_schedule_is_read_from_a_file(tmp_path: Path, form: str) -> None:
    schedule = parse_schedule("4x", num_layers=24, horizon=10)
    path = tmp_path / "schedule.json"
    path.write_text(FILES[form](schedule))
    assert parse_schedule(str(path), num_layers=24) == schedule
    with pytest.raises(ScheduleError, match="for 24 layers; the model has 12"):
        parse_schedule(str(path), num_layers=12)


@pytest.mark.parametrize("end", ["\n", "", "\r\n"])
def test_the_last_line_feed_of_a_document_is_optional(end: str) -> None:
    schedule = parse_schedule("2x", num_layers=6, horizon=4)
    text = document_text(schedule).removesuffix("\n") + end
    assert parse_schedule(text, num_layers=6) == schedule
    with pytest.raises(ScheduleError, match=r"schedule \| digest is .*the file was changed"):
        parse_schedule(text.replace('"max_exit_layer": 4', '"max_exit_layer": 5'), num_layers=6)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        (json.dumps({"schedule": {"num_layers": 3}, "digest": "0"}), "digest is '0'"),
        (json.dumps({"num_layers": 3}), "'horizon' is missing"),
        (json.dumps(FIELDS | {"max": 3}), "key 'max' is unknown; allowed: num_layers, max_exit_l"),
        (json.dumps(FIELDS | {"max_exit_layer": 4}), "max_exit_layer is 4; allowed: 1 to num_lay"),
    ],
)
@pytest.mark.parametrize("parse", [lambda text: parse_schedule(text, num_layers=3), read_document])
def test_bad_files_are_refused_by_name(
    tmp_path: Path, content: str, message: str, parse: Callable[[str], ExitSchedule]
) -> None:
    path = tmp_path / "schedule.json"
    path.write_text(content)
    with pytest.raises(ScheduleError, match=message) as caught:
        parse(str(path))
    assert caught.value.subject == f"schedule {path}"
    with pytest.raises(ScheduleError, match="can't be read"):
        parse_schedule(str(tmp_path / "absent.json"), num_layers=3)


def test_the_default_horizon_is_the_bundles_unless_constant() -> None:
    linear = parse_schedule("2x:horizon=48", num_layers=24)
    assert default_horizon(linear, max_tokens=200) == 48
    assert default_horizon(ExitSchedule.full(24), max_tokens=200) == 200


def test_numpy_values_become_python_values() -> None:
    table = ExitSchedule(
        num_layers=np.int64(6),
        max_exit_layer=np.int32(5),
        min_exit_layer=np.uint8(2),
        horizon=np.array(4),
        decay="table",
        table=np.array([5, 4, 4, 2]),
    )
    assert table == parse_schedule("table:table=5/4/4/2", num_layers=6)
    assert type(table.num_layers) is int
    with pytest.raises(ScheduleError, match="horizon is True"):
        ExitSchedule(num_layers=6, max_exit_layer=4, min_exit_layer=2, horizon=np.bool_(True))


def test_formatting_builds_no_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    schedules = [parse_schedule("2x:horizon=64", num_layers=24), ExitSchedule.full(24)]
    monkeypatch.setattr(ExitSchedule, "__init__", None)
    assert [format_schedule(one) for one in schedules] == [
        "linear:max=16,min=8,warmup=1,horizon=64",
        "full",
    ]


@pytest.mark.parametrize("value", [5, None, "2x", [], {}])
def test_only_a_schedule_is_formatted_or_drawn(value: object, tmp_path: Path) -> None:
    for refused in (format_schedule, lambda given: plot_schedule(given, tmp_path / "picture.svg")):
        with pytest.raises(ScheduleError, match="allowed: an ExitSchedule"):
            refused(value)
