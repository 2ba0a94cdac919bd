"""schedule.json alone says which layers run: read here by the specification, without our code."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hollow_bundles import write_hollow_bundle

from skipdec.engines.bundle import EngineBundle, write_schedule
from skipdec.engines.errors import BundleError, ScheduleError
from skipdec.runtime.schedule.bundle import (
    MAX_PRESET_LAYERS,
    bundle_schedule,
    plan_document,
    preset_documents,
    schedule_file,
)
from skipdec.runtime.schedule.presets import fitting_presets
from skipdec.runtime.schedule.request_schedules import default_horizon
from skipdec.runtime.schedule.text import format_schedule, parse_schedule

SPECS = [
    "full",
    "2x:horizon=64",
    "3x:horizon=1",
    "4x:horizon=20,placement=bottom",
    "2x:horizon=9,prompt=decay",
    "linear:max=12,min=4,warmup=2,horizon=33,prompt=decay,placement=hierarchical",
    "power:max=10,min=3,warmup=1,horizon=100,power=2,prompt=decay",
    "constant:max=5",
    "constant:max=7,prompt=decay",
    "constant:max=12,prompt=decay",
    "constant:max=4,placement=unified",
    "table:table=12/12/9/9/4/3",
    "step:max=9,min=3,horizon=40,steps=3,placement=unified-nested",
    "2x:horizon=30,placement=d3,tail=2",
    "d3:max=12,min=5,alpha=0.9",
]


def layers_at(plan: dict[str, Any], index: int) -> list[int]:
    """Return the set of generated token ``index``: of the last segment starting at or before it."""
    return [one["layers"] for one in plan["segments"] if one["start"] <= index][-1]


def prefix_at(plan: dict[str, Any], layer: int, length: int) -> int:
    """Tokens of a prompt of ``length`` that run ``layer``."""
    prompt = plan["prompt"]
    if prompt is None or prompt["numerators"][layer] is None:
        return length
    return min(length, prompt["numerators"][layer] * (length - 1) // prompt["denominator"] + 1)


def resolved_preset(preset: dict[str, Any], horizon: int) -> list[tuple[int, list[int]]]:
    """(start, layers) of a preset's segments over ``horizon`` tokens; of equal starts the last."""
    starts: dict[int, list[int]] = {}
    for segment in preset["segments"]:
        numerator, denominator = segment.get("after", (0, 1))
        start = segment.get("start", numerator * max(1, horizon - 1) // denominator + 1)
        starts[start] = segment["layers"]
    return list(starts.items())


@pytest.mark.parametrize("spec", SPECS)
def test_the_plan_says_what_the_schedule_does(spec: str) -> None:
    schedule = parse_schedule(spec, num_layers=12)
    plan = json.loads(json.dumps(plan_document(schedule)))
    assert plan["num_layers"] == 12
    for index in range(schedule.horizon + 3):
        assert layers_at(plan, index) == list(schedule.plan(index))
    for length in (1, 2, 3, 5, 8, 31, 1000):
        for layer in range(12):
            assert prefix_at(plan, layer, length) == schedule.prompt_prefix(layer, length)
    assert parse_schedule(plan["text"], num_layers=12) == schedule
    for max_tokens in (7, 70):
        horizon = max_tokens if plan["horizon"] is None else plan["horizon"]
        assert horizon == default_horizon(schedule, max_tokens)


@pytest.mark.parametrize("num_layers", range(1, 49))
def test_presets_are_what_their_texts_say_at_any_horizon(num_layers: int) -> None:
    presets = json.loads(json.dumps(preset_documents(num_layers)))
    assert tuple(presets) == ("full", *fitting_presets(num_layers))
    drawn = random.Random(num_layers)
    for name, preset in presets.items():
        for horizon in (1, 2, 3, drawn.randrange(4, 201)):
            assert_means(preset, name, num_layers, horizon)
        assert preset["prompt"] is None


@pytest.mark.parametrize("horizons", [range(4, 201), (65_537,)], ids=["each", "long"])
@pytest.mark.parametrize("name", ["full", "2x", "6x"])
def test_a_preset_is_what_its_text_says_at_every_horizon(
    name: str, horizons: Iterable[int]
) -> None:
    preset = preset_documents(24)[name]
    for horizon in horizons:
        assert_means(preset, name, 24, horizon)


def assert_means(preset: dict[str, Any], name: str, num_layers: int, horizon: int) -> None:
    text = name if name == "full" else f"{name}:horizon={horizon}"
    schedule = parse_schedule(text, num_layers=num_layers)
    expected = [(one.start, list(one.plan)) for one in schedule.segments]
    assert resolved_preset(preset, horizon) == expected, (name, horizon)
    assert preset["text"].format(horizon=horizon) == format_schedule(schedule)


def test_a_worked_preset() -> None:
    """As the specification has it: 12 layers, 3x falls from 6 to 2."""
    presets = preset_documents(12)
    assert presets["3x"] == {
        "prompt": None,
        "segments": [
            {"layers": [0, 7, 8, 9, 10, 11], "start": 0},
            {"layers": [0, 8, 9, 10, 11], "after": [1, 8]},
            {"layers": [0, 9, 10, 11], "after": [3, 8]},
            {"layers": [0, 10, 11], "after": [5, 8]},
            {"layers": [0, 11], "after": [7, 8]},
        ],
        "text": "linear:max=6,min=2,warmup=1,horizon={horizon}",
    }


def test_a_worked_preset_and_its_starts() -> None:
    starts = [start for start, _ in resolved_preset(preset_documents(12)["3x"], 9)]
    assert starts == [0, 2, 4, 6, 8]
    everything, last = resolved_preset(preset_documents(12)["3x"], 2)
    assert (len(everything[1]), last) == (6, (1, [0, 11]))


def test_a_worked_plan() -> None:
    """As the specification has it."""
    text = "linear:max=8,min=4,warmup=1,horizon=5,prompt=decay"
    plan = plan_document(parse_schedule(text, num_layers=12))
    numerators = [None, 1, 3, 5, 7, *[None] * 7]
    assert plan["prompt"] == {"denominator": 8, "numerators": numerators}
    assert plan["segments"] == [
        {"layers": [0, *range(first, 12)], "start": start}
        for start, first in enumerate((5, 6, 7, 8, 9))
    ]
    assert [prefix_at(plan, layer, 5) for layer in range(12)] == [5, 1, 2, 3, 4, *[5] * 7]


def test_deep_models_have_fewer_presets_and_a_bounded_plan() -> None:
    assert len(preset_documents(MAX_PRESET_LAYERS)) > 2
    assert list(preset_documents(MAX_PRESET_LAYERS + 1)) == ["full"]
    with pytest.raises(ScheduleError, match="allowed: 524,288"):
        schedule_file(parse_schedule("linear:max=4096,min=2,horizon=9000", num_layers=4096))
    schedule_file(parse_schedule("step:max=4096,min=2,horizon=99,steps=9", num_layers=4096))


@pytest.mark.parametrize("key", ["plan", "presets"])
def test_a_file_that_says_other_layers_than_its_schedule_is_refused(
    tmp_path: Path, key: str
) -> None:
    schedule = parse_schedule("2x:horizon=8", num_layers=6)
    bundle = write_hollow_bundle(tmp_path / "bundle", schedule)
    assert bundle_schedule(bundle) == schedule
    document = json.loads(json.dumps(bundle.schedule_file))
    plan = document["plan"] if key == "plan" else document["presets"]["2x"]
    plan["segments"][0]["layers"].pop(1)
    write_schedule(bundle.path, document)
    with pytest.raises(BundleError, match=rf"schedule\.json.*{key}: is not what"):
        bundle_schedule(EngineBundle.open(bundle.path))
