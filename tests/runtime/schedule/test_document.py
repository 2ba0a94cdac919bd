"""An independent reader of the specification finds the same layers in schedule.json."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hollow_bundles import write_hollow_bundle

from skipdec.engines.bundle import EngineBundle, write_schedule
from skipdec.engines.errors import BundleError
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.bundle import bundle_schedule
from skipdec.runtime.schedule.presets import fitting_presets
from skipdec.runtime.schedule.text import format_schedule, parse_schedule

HALF = Fraction(1, 2)
SPECS = [
    "full",
    "2x:horizon=64",
    "3x:horizon=1",
    "4x:horizon=20,placement=bottom",
    "2x:horizon=9,prompt=decay",
    "linear:max=12,min=4,warmup=2,horizon=33,prompt=decay,placement=hierarchical",
    "power:max=10,min=3,warmup=1,horizon=100,power=2,prompt=decay",
    "power:max=10,min=3,warmup=0,horizon=50,power=0.7",
    "exponential:max=12,min=3,warmup=3,horizon=40,rate=2.5,placement=bottom",
    "cosine:max=11,min=3,horizon=70,placement=unified-nested,prompt=decay",
    "constant:max=5",
    "constant:max=7,prompt=decay",
    "constant:max=12,prompt=decay",
    "constant:max=4,placement=unified",
    "constant:max=7,warmup=3,placement=unified",
    "table:table=12/12/9/9/4/3",
    "step:max=9,min=3,horizon=40,steps=3,placement=unified-nested",
    "2x:horizon=30,placement=d3,tail=2",
    "d3:max=12,min=5,alpha=0.9",
]


def on_grid(value: float) -> Fraction:
    return Fraction(round(value * 2**40), 2**40)


def budget(rule: dict[str, Any], index: int) -> int:
    high, low, horizon = rule["max_exit_layer"], rule["min_exit_layer"], rule["horizon"]
    decay, time = rule.get("decay", "linear"), Fraction(index, max(1, horizon - 1))
    if index >= horizon:
        return int(low)
    if decay == "table":
        return int(rule["table"][index])
    if decay == "d3":
        return max(int(low), math.floor(on_grid(high * rule["alpha"] ** index)))
    fallen = Fraction(0)
    if decay == "linear":
        fallen = time
    elif decay == "cosine":
        fallen = on_grid((1 - math.cos(math.pi * float(time))) / 2)
    elif decay == "power":
        power = rule["power"]
        is_exact = power in range(1, 17)
        fallen = time ** int(power) if is_exact else on_grid(float(time) ** power)
    elif decay == "exponential":
        rate = rule["rate"]
        fallen = on_grid((1 - math.exp(-rate * float(time))) / (1 - math.exp(-rate)))
    elif decay == "step":
        fallen = Fraction(index * rule["steps"] // horizon, rule["steps"] - 1)
    return math.floor(high - (high - low) * fallen + HALF)


def layers(rule: dict[str, Any], count: int) -> list[int]:
    depth, warmup = rule["num_layers"], rule.get("warmup_layers", 1)
    lowest, placement = max(warmup, 1), rule.get("placement", "top")
    if placement == "bottom":
        return [*range(count)]
    if placement == "unified":
        steps = count - lowest
        spread = (Fraction(j * (depth - lowest), steps) for j in range(1, steps + 1))
        return [*range(lowest), *(math.floor(lowest - 1 + each + HALF) for each in spread)]
    if placement == "unified-nested":
        chosen = [*range(lowest), depth - 1]
        while len(chosen) < count:
            gap = max((high - low, low, high) for low, high in pairwise(sorted(chosen)))
            chosen.append((gap[1] + gap[2]) // 2)
        return sorted(chosen)
    if placement == "hierarchical":
        powers = {layer: (depth - 1 - layer) & -(depth - 1 - layer) for layer in range(depth - 1)}
        others = sorted(range(warmup, depth - 1), key=lambda layer: (-powers[layer], -layer))
        return sorted([*range(warmup), depth - 1, *others][:count])
    start = warmup
    if placement == "d3":
        start += (count - warmup - rule["tail"]) // 2
    return [*range(start), *range(depth - count + start, depth)]


def prompt_budget(rule: dict[str, Any], index: int, length: int) -> int:
    depth = int(rule["num_layers"])
    if rule.get("prompt", "full") == "full" or index == 0:
        return depth
    fall = depth - rule["max_exit_layer"]
    return math.floor(depth - Fraction(fall * index, length - 1) + HALF)


@pytest.mark.parametrize("spec", SPECS)
def test_schedules_run_the_layers_of_the_specification(spec: str) -> None:
    schedule = parse_schedule(spec, num_layers=12)
    rule = schedule.to_document()
    for index in range(schedule.horizon + 3):
        assert list(schedule.plan(index)) == layers(rule, budget(rule, index)), index
    for length in (1, 2, 3, 5, 8, 31, 200):
        budgets = [prompt_budget(rule, index, length) for index in range(length)]
        assert [schedule.prompt_budget(index, length) for index in range(length)] == budgets
        plans = [layers(rule, count) for count in budgets]
        for layer in range(12):
            running = [layer in plan for plan in plans]
            assert running == sorted(running, reverse=True)
            assert sum(running) == schedule.prompt_prefix(layer, length)
    assert parse_schedule(format_schedule(schedule), num_layers=12) == schedule
    assert ExitSchedule.from_document(json.loads(json.dumps(rule))) == schedule


@pytest.mark.parametrize("num_layers", [1, 2, 3, 7, 12, 24, 300])
def test_presets_follow_the_specification(num_layers: int) -> None:
    for speedup in range(1, num_layers + 1):
        low = 2 * math.floor(Fraction(num_layers, 3 * speedup) + HALF)
        high = math.floor(Fraction(2 * num_layers, speedup) + HALF) - low
        exists = 1 < low <= high <= num_layers
        assert (f"{speedup}x" in fitting_presets(num_layers)) == exists
        if exists:
            expected = f"linear:max={high},min={low},warmup=1,horizon=9"
            found = parse_schedule(f"{speedup}x:horizon=9", num_layers=num_layers)
            assert format_schedule(found) == expected


def test_the_specifications_example_of_a_schedule() -> None:
    text = "linear:max=8,min=4,warmup=1,horizon=5,prompt=decay"
    schedule = parse_schedule(text, num_layers=12)
    assert [(each.start, list(each.plan)) for each in schedule.segments] == [
        (start, [0, *range(first, 12)]) for start, first in enumerate((5, 6, 7, 8, 9))
    ]
    assert [schedule.prompt_budget(index, 5) for index in range(5)] == [12, 11, 10, 9, 8]
    prefixes = [schedule.prompt_prefix(layer, 5) for layer in range(12)]
    assert prefixes == [5, 1, 2, 3, 4, *[5] * 7]


def test_the_specifications_example_of_a_preset() -> None:
    long, short = (parse_schedule(f"3x:horizon={each}", num_layers=12) for each in (9, 2))
    assert [each.start for each in long.segments] == [0, 2, 4, 6, 8]
    assert [list(each.plan) for each in short.segments] == [[0, 7, 8, 9, 10, 11], [0, 11]]


def test_a_schedule_of_another_depth_is_refused(tmp_path: Path) -> None:
    schedule = parse_schedule("2x:horizon=8", num_layers=6)
    bundle = write_hollow_bundle(tmp_path / "bundle", schedule)
    assert bundle_schedule(bundle) == schedule
    write_schedule(bundle.path, schedule.to_document() | {"num_layers": 7})
    with pytest.raises(BundleError, match=r"schedule\.json.*for 7 layers; the model has 6"):
        bundle_schedule(EngineBundle.open(bundle.path))
