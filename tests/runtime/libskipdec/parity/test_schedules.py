"""Schedules that C++ reads from schedule.json run the same layers per token as ExitSchedule."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from programs import built_program

from skipdec.engines.errors import ScheduleError
from skipdec.runtime.schedule import ExitSchedule
from skipdec.runtime.schedule.presets import fitting_presets
from skipdec.runtime.schedule.request_schedules import ScheduleResolver
from skipdec.runtime.schedule.text import document_text, format_schedule, parse_schedule

OWN_SCHEDULES = (
    "full",
    "constant:max=3",
    "2x:horizon=16",
    "2x:horizon=1",
    "linear:max=5,min=2,warmup=2,horizon=7,placement=bottom",
    "linear:max=6,min=2,horizon=1048576",
    "power:max=6,min=2,horizon=33,power=2",
    "power:max=5,min=2,horizon=300,power=3,prompt=decay",
    "power:max=6,min=2,horizon=50,power=0.3",
    "exponential:max=5,min=2,horizon=40,rate=3",
    "exponential:max=5,min=2,horizon=40,rate=2.5,placement=unified-nested",
    "cosine:max=6,min=3,horizon=20",
    "cosine:max=6,min=3,horizon=200,placement=hierarchical",
    "step:max=6,min=2,horizon=50,steps=3",
    "step:max=6,min=2,horizon=50,steps=3,placement=bottom",
    "d3:max=6,min=3,alpha=0.98,placement=d3,tail=1",
    "table:table=6/6/5/3/2",
    "constant:max=4,placement=unified",
    "linear:max=6,min=3,horizon=12,placement=unified-nested",
    "linear:max=6,min=3,horizon=12,placement=hierarchical",
    "2x:horizon=9,prompt=decay",
    "linear:max=3,min=2,horizon=12,prompt=decay",
    "constant:max=5,prompt=decay",
    "2x:horizon=64,placement=d3,tail=1",
)
REQUESTS = ((1, "own"), (30, "full"), (64, "2x"), (1, "2x"), (2, "2x"), (5, "2x:horizon=31"))


def described(
    path: Path, num_layers: int, requests: Iterable[tuple[int, str]], *options: object
) -> list[str]:
    """Return schedules.cpp's description of each request."""
    lines = "".join(f"{max_tokens} {schedule}\n" for max_tokens, schedule in requests)
    program = built_program("schedules")
    command = [program, path, str(num_layers), *map(str, options)]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def expected(schedule: ExitSchedule) -> str:
    """Return the expected description."""
    lists: list[Sequence[int]] = [schedule.plan(index).layers for index in (*range(80), 2**20)]
    last = [schedule.last_index(layer) for layer in range(schedule.num_layers)]
    lists.append([-2 if index is None else index for index in last])
    for length in (1, 2, 3, 7, 64, 1000):
        lists.append(schedule.active_lengths(length, 9))
        indices = (0, length // 2, length - 1)
        lists.append([schedule.prompt_budget(index, length) for index in indices])
    texts = ["".join(f"{number} " for number in numbers) + ";" for numbers in lists]
    return f"{format_schedule(schedule)};{int(not schedule.is_full)};" + "".join(texts)


@pytest.mark.parametrize("text", OWN_SCHEDULES)
def test_own_schedules_and_presets_run_the_same_layers(tmp_path: Path, text: str) -> None:
    own = parse_schedule(text, num_layers=6)
    (path := tmp_path / "schedule.json").write_text(document_text(own))
    resolver = ScheduleResolver(6, own, 2**20)
    for (max_tokens, schedule), line in zip(REQUESTS, described(path, 6, REQUESTS), strict=True):
        resolved = resolver.resolve(None if schedule == "own" else schedule, max_tokens)
        assert line == expected(resolved), schedule


@pytest.mark.parametrize("num_layers", [1, 2, 3, 7, 12, 24, 48, 96])
def test_presets_run_the_same_layers_in_models_of_any_depth(
    tmp_path: Path, num_layers: int
) -> None:
    own = ExitSchedule.full(num_layers)
    (path := tmp_path / "schedule.json").write_text(document_text(own))
    presets = fitting_presets(num_layers)[::2]
    requests = [(max_tokens, name) for max_tokens in (1, 2, 3, 10, 64, 77) for name in presets]
    resolver = ScheduleResolver(num_layers, own, 2**20)
    lines = described(path, num_layers, requests)
    for (max_tokens, name), line in zip(requests, lines, strict=True):
        assert line == expected(resolver.resolve(name, max_tokens)), (name, max_tokens)


def test_a_request_may_give_a_schedule_as_json_but_not_as_text(tmp_path: Path) -> None:
    own = ExitSchedule.full(6)
    (path := tmp_path / "schedule.json").write_text(document_text(own))
    given = parse_schedule("cosine:max=5,min=2,horizon=12", num_layers=6)
    (shown := tmp_path / "given.json").write_text(document_text(given))
    wrong = "cosine:max=5,min=2,horizon=12"
    lines = described(path, 6, [(9, str(shown)), (9, wrong)])
    assert lines[0] == expected(given)
    assert lines[1].startswith(f"error: schedule '{wrong}' | is unknown here; allowed: 2x, ")


def test_both_refuse_a_horizon_above_the_maximum(tmp_path: Path) -> None:
    own = ExitSchedule.full(6)
    (path := tmp_path / "schedule.json").write_text(document_text(own))
    (line,) = described(path, 6, [(2**20 + 1, "2x")])
    with pytest.raises(ScheduleError, match="1048577"):
        ScheduleResolver(6, own, 2**21).resolve("2x", 2**20 + 1)
    assert line.startswith("error: ")
    assert "1048577" in line


@pytest.mark.parametrize("own", ["full", "2x:horizon=99"])
def test_both_refuse_a_horizon_above_the_positions(tmp_path: Path, own: str) -> None:
    schedule = parse_schedule(own, num_layers=6)
    (path := tmp_path / "schedule.json").write_text(document_text(schedule))
    resolver = ScheduleResolver(6, schedule, 64)
    longest = max(64, schedule.horizon)
    requests = [(9, f"2x:horizon={longest}"), (9, f"2x:horizon={longest + 1}"), (9, "2x")]
    allowed, too_long, preset = described(path, 6, requests, 64)
    assert allowed == expected(resolver.resolve(requests[0][1], 9))
    assert preset == expected(resolver.resolve("2x", 9))
    with pytest.raises(ScheduleError, match=str(longest + 1)):
        resolver.resolve(requests[1][1], 9)
    assert too_long.startswith("error: ")
    assert str(longest + 1) in too_long


def test_both_refuse_a_json_horizon_above_the_positions_unless_it_is_implied(
    tmp_path: Path,
) -> None:
    own = ExitSchedule.full(6)
    (path := tmp_path / "schedule.json").write_text(document_text(own))
    resolver = ScheduleResolver(6, own, 64)
    rule = {"num_layers": 6, "max_exit_layer": 4, "min_exit_layer": 2, "horizon": 65}
    table = rule | {"decay": "table", "table": [4] * 64 + [2]}
    texts = [json.dumps(one) for one in (rule, rule | {"horizon": 64}, table)]
    too_long, allowed, implied = described(path, 6, [(9, text) for text in texts], 64)
    with pytest.raises(ScheduleError, match="horizon is 65; allowed: 1 to 64, the bundle's posi"):
        resolver.resolve(texts[0], 9)
    assert "horizon is 65; allowed: 1 to 64, the bundle's positions" in too_long
    assert [allowed, implied] == [expected(resolver.resolve(text, 9)) for text in texts[1:]]
