"""Schedules as text, and texts as schedules: ``full``, ``2x``, ``linear:max=16,…``."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from .notation import FIELDS, full_arguments, read_arguments
from .schedule import ExitSchedule


def parse_schedule(text: str, *, num_layers: int, horizon: int | None = None) -> ExitSchedule:
    """Read ``full``, ``2x``, ``linear:max=16,min=8,horizon=64``, a .json file's name, …

    ``horizon`` serves presets and decays whose text names none. All forms are in ``notation``.

    >>> parse_schedule("2x", num_layers=24, horizon=64).max_exit_layer
    16

    Raises ScheduleError, all problems at once.
    """
    arguments = read_arguments(text, num_layers=num_layers, horizon=horizon)
    return ExitSchedule.from_document(arguments)


@lru_cache(maxsize=256)
def format_schedule(schedule: ExitSchedule) -> str:
    """Return the text form that ``parse_schedule`` reads back.

    >>> format_schedule(parse_schedule("2x", num_layers=24, horizon=64))
    'linear:max=16,min=8,warmup=1,horizon=64'
    """
    full = {"placement": "top", "prompt": "full", **full_arguments(schedule.num_layers)}
    if all(getattr(schedule, field) == value for field, value in full.items()):
        return "full"
    values: dict[str, Any] = {key: getattr(schedule, field) for key, field in FIELDS.items()}
    prompt = values.pop("prompt")
    if schedule.placement == "top":
        del values["placement"]
    values |= {**schedule.decay_rule.values(), **schedule.placement_rule.values()}
    if prompt != "full":
        values["prompt"] = prompt
    options = ",".join(f"{key}={_formatted(value)}" for key, value in values.items())
    return f"{schedule.decay}:{options}"


def _formatted(value: object) -> str:
    return "/".join(map(str, value)) if isinstance(value, tuple) else str(value)
