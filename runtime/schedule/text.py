"""Schedules as text: ``full``, presets, ``linear:max=16,min=8,…``, JSON files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from ...engines.documents import read_json
from ...engines.errors import ScheduleError
from ...engines.manifest import json_digest
from ...engines.registry import Registry
from .decays import DECAYS
from .fields import round_half_up
from .placements import PLACEMENTS
from .rule import INTEGER, NAME, Notation, parameters_of
from .schedule import ExitSchedule

_FIELDS = {  # by option; the parameters of decays and placements are options of their own name
    "max": "max_exit_layer",
    "min": "min_exit_layer",
    "warmup": "warmup_layers",
    "horizon": "horizon",
    "placement": "placement",
    "prompt": "prompt",
}
_NAMES = ("placement", "prompt")
_PRESET = re.compile(r"(\d+(?:\.\d+)?)x")
EXAMPLES = "full, 2x, 2x:horizon=64, linear:max=16,min=8,warmup=1,horizon=64, a file.json"


def parse_schedule(text: str, *, num_layers: int, horizon: int | None = None) -> ExitSchedule:
    """Read a schedule for a model of ``num_layers`` from its text form.

    ``horizon`` serves presets and decays whose text names none. Forms::

        full                                         every token runs every layer
        2x  3x:horizon=64  2x:placement=bottom       presets, see preset_budgets
        linear:max=16,min=8,warmup=1,horizon=64      DECAY:max=,min=,warmup=,horizon=[,placement=]
        power:max=16,min=8,horizon=64,power=2        and exponential: rate=, step: steps=
        constant:max=12                              min and horizon are not needed
        table:table=16/16/12/8                       nor max here
        d3:max=24,min=8,alpha=0.98                   nor horizon here
        2x:placement=d3,tail=2                       a placement with a parameter
        2x:prompt=decay                              the prompt falls from all layers to max
        schedule.json                                an ExitSchedule's JSON, or a bundle's file

    >>> parse_schedule("2x", num_layers=24, horizon=64).max_exit_layer
    16

    Raises ScheduleError, all problems at once.
    """
    name, _, rest = text.strip().partition(":")
    if text.strip().endswith(".json"):
        return read_schedule(Path(text.strip()), num_layers=num_layers)
    if name == "full":
        _options(text, rest, allowed={})
        return ExitSchedule.full(num_layers)
    if preset := _PRESET.fullmatch(name):
        options = _options(text, rest, allowed=_notations(("horizon", "placement"), PLACEMENTS))
        largest, smallest = preset_budgets(Fraction(preset[1]), num_layers)
        values = {"max_exit_layer": largest, "min_exit_layer": smallest, **options}
    elif name in DECAYS:
        fields = ("max", "min", "warmup", "horizon", "placement")
        options = _options(text, rest, allowed=_notations(fields, DECAYS, PLACEMENTS))
        values = {"decay": name, **DECAYS.load(name).implied(options), **options}
    else:
        raise ScheduleError(
            f"schedule {text!r}",
            f"{name!r} is unknown; allowed: {EXAMPLES}; decays: {', '.join(DECAYS)}",
        )
    values = {
        "num_layers": num_layers,
        **({} if horizon is None else {"horizon": horizon}),
        **values,
    }
    _check_complete(text, values)
    return ExitSchedule(**values)


def format_schedule(schedule: ExitSchedule) -> str:
    """Return the text form that ``parse_schedule`` reads back.

    >>> format_schedule(parse_schedule("2x", num_layers=24, horizon=64))
    'linear:max=16,min=8,warmup=1,horizon=64'
    """
    if schedule == ExitSchedule.full(schedule.num_layers):
        return "full"
    values: dict[str, Any] = {key: getattr(schedule, field) for key, field in _FIELDS.items()}
    prompt = values.pop("prompt")
    if schedule.placement == "top":
        del values["placement"]
    values |= {**schedule.decay_rule.values(), **schedule.placement_rule.values()}
    if prompt != "full":
        values["prompt"] = prompt
    options = ",".join(f"{key}={_formatted(value)}" for key, value in values.items())
    return f"{schedule.decay}:{options}"


def format_layers(layers: Iterable[int]) -> str:
    """Return ascending layer indices as ranges.

    >>> format_layers((0, 9, 10, 11))
    '0, 9–11'
    """
    ranges: list[list[int]] = []
    for layer in layers:
        if ranges and layer == ranges[-1][-1] + 1:
            ranges[-1][-1] = layer
        else:
            ranges.append([layer, layer])
    return ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in ranges)


def preset_budgets(speedup: Fraction, num_layers: int) -> tuple[int, int]:
    """Return (max, min) of skipdec's preset "k×": warm-up 1, mean depth about L/k.

    min = 2·round(L/3k), max = round(2L/k) − min. 24 layers: 2x → (16, 8), 3x → (10, 6),
    4x → (8, 4), 5x → (6, 4), really 4.8x. k leaves out the prompt, the embedding and the head.

    Raises ScheduleError, naming the largest k, where min ≤ 1, max < min or max > L.
    """
    budgets = _preset_formula(speedup, num_layers)
    if budgets is None:
        presets = fitting_presets(num_layers)
        allowed = (
            f"largest possible: {presets[-1]}, smallest whole one: {presets[0]}"
            if presets
            else "no preset fits"
        )
        raise ScheduleError(
            f"preset {float(speedup):g}x",
            f"does not fit {num_layers} layers; {allowed}; "
            "or name budgets, e.g. linear:max=4,min=2,horizon=64",
        )
    return budgets


def fitting_presets(num_layers: int) -> tuple[str, ...]:
    """Return the whole presets that a model of ``num_layers`` can run.

    >>> fitting_presets(12)
    ('2x', '3x', '4x', '5x', '6x')
    """
    return tuple(
        f"{speedup}x"
        for speedup in range(1, num_layers + 1)
        if _preset_formula(Fraction(speedup), num_layers)
    )


def default_horizon(schedule: ExitSchedule, max_tokens: int) -> int:
    """Return the horizon of a preset that names none.

    That of the bundle's own ``schedule``, else (constant, full) the request's own ``max_tokens``.
    """
    return max_tokens if schedule.decay == "constant" else schedule.horizon


def read_schedule(path: Path, *, num_layers: int) -> ExitSchedule:
    """Read a JSON file: an ExitSchedule's object, or one that holds it under "schedule".

    A bundle's schedule.json is such a file, with a digest that is checked; so is what
    ``skipdec schedule show --json`` prints.

    Raises ScheduleError for a file that can't be read, a digest that does not match, or a
    schedule of another depth.
    """
    subject = f"schedule {path}"
    document = read_json(path, ScheduleError, subject=subject)
    if isinstance(document, dict) and "schedule" in document:
        digest = json_digest(document["schedule"])
        if document.get("digest", digest) != digest:
            raise ScheduleError(
                subject,
                f"digest is {document['digest']!r}, its schedule has {digest!r}; the file was "
                "changed; keep only the inner object, or run skipdec schedule set",
            )
        document = document["schedule"]
    schedule = ExitSchedule.from_document(document)
    if schedule.num_layers != num_layers:
        raise ScheduleError(
            subject, f"is for {schedule.num_layers} layers; the model has {num_layers}"
        )
    return schedule


def _preset_formula(speedup: Fraction, num_layers: int) -> tuple[int, int] | None:
    if speedup <= 0:
        return None
    smallest = 2 * round_half_up(num_layers / (3 * speedup))
    largest = round_half_up(2 * num_layers / speedup) - smallest
    fits = 1 < smallest <= largest <= num_layers
    return (largest, smallest) if fits else None


def _notations(fields: tuple[str, ...], *registries: Registry) -> dict[str, Notation]:
    """Which options a text may have: ``fields``, the parameters of all rules, and prompt."""
    notations = {key: NAME if key in _NAMES else INTEGER for key in fields}
    return {**notations, **parameters_of(*registries), "prompt": NAME}


def _options(text: str, rest: str, *, allowed: Mapping[str, Notation]) -> dict[str, Any]:
    """Parse ``key=value,…`` into an ExitSchedule's arguments."""
    values: dict[str, Any] = {}
    problems = []
    for option in rest.split(",") if rest else []:
        key, equals, value = (part.strip() for part in option.partition("="))
        field = _FIELDS.get(key, key)
        if not equals or key not in allowed:
            listed = ", ".join(f"{name}=" for name in allowed) or "none"
            problems.append(f"option {option!r} is unknown; allowed: {listed}")
        elif field in values:
            problems.append(f"option {key!r} is given twice")
        else:
            try:
                values[field] = allowed[key].read(value)
            except ValueError:
                problems.append(f"{key} is {value!r}; allowed: {allowed[key].wanted}")
    if problems:
        raise ScheduleError(f"schedule {text!r}", *problems)
    return values


def _formatted(value: object) -> str:
    return "/".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _check_complete(text: str, values: dict[str, Any]) -> None:
    examples = {"max": 8, "min": 4, "horizon": 64}
    missing = [key for key in examples if _FIELDS[key] not in values]
    if missing:
        raise ScheduleError(
            f"schedule {text!r}",
            *(f"{key} is missing; add it, e.g. {key}={examples[key]}" for key in missing),
        )
