"""Schedules as text, and texts as schedules: ``full``, ``2x``, ``linear:max=16,…``."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from numbers import Integral
from pathlib import Path
from typing import Any

from ...engines.documents import (
    document_digest,
    json_kind,
    parse_json,
    read_json,
    sealed_text,
)
from ...engines.errors import MOST_PROBLEMS, ScheduleError, did_you_mean, shown
from .checks import MAX_HORIZON
from .decays import DECAYS, d3_horizon
from .presets import preset_budgets, speedup_of
from .schedule import ExitSchedule, full_arguments

_FIELDS = {  # by option; other options have their field's name
    "max": "max_exit_layer",
    "min": "min_exit_layer",
    "warmup": "warmup_layers",
}
_SHOWN_NAMES = {  # of fields, in problems of a notation
    **{field: option for option, field in _FIELDS.items()},
    "num_layers": "the model's layers",
}
_NAMES = re.compile("|".join((r"'[^']*'", r'"[^"]*"', *_SHOWN_NAMES)))  # values stay as they are


def _number(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() else number


def _integers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("/")))


_OPTIONS: dict[str, tuple[Callable[[str], object], str]] = {  # the parser and the kind of value
    **dict.fromkeys(("max", "min", "warmup", "horizon"), (int, "an integer")),
    "placement": (str, "a name"),
    "power": (_number, "a number"),
    "rate": (_number, "a number"),
    "steps": (int, "an integer"),
    "table": (_integers, "integers, e.g. 16/16/12/8"),
    "alpha": (_number, "a number"),
    "tail": (int, "an integer"),
    "prompt": (str, "a name"),
}
_PRESET_OPTIONS = ("horizon", "placement", "tail", "prompt")
_PRESET = re.compile(r"([0-9]+(?:\.[0-9]+)?)x")
_EXAMPLES = "full, 2x, 2x:horizon=64, linear:max=16,min=8,warmup=1,horizon=64"


def parse_schedule(text: str, *, num_layers: int, horizon: int | None = None) -> ExitSchedule:
    """Read ``full``, ``2x``, ``linear:max=16,min=8,horizon=64``, a .json file's name, …

    ``horizon`` is for presets and decays whose text names none. `read_arguments` lists all forms.

    >>> parse_schedule("2x", num_layers=24, horizon=64).max_exit_layer
    16

    Raises ScheduleError, all problems at once.
    """
    return make_schedule(text, read_arguments(text, num_layers=num_layers, horizon=horizon))


def make_schedule(text: str, arguments: Mapping[str, Any]) -> ExitSchedule:
    """Return the schedule of ``text``'s arguments.

    Raises ScheduleError; problems use the option names of the notation, or name the text's file.
    """
    try:
        return ExitSchedule.from_document(arguments)
    except ScheduleError as error:
        if names_file(text):
            raise ScheduleError(f"schedule {text.strip()}", *error.problems) from None
        if beyond_notation(text):
            raise
        problems = [
            _NAMES.sub(lambda name: _SHOWN_NAMES.get(name[0], name[0]), each)
            for each in error.problems
        ]
        raise ScheduleError(f"schedule {shown(text)}", *problems) from None


def format_schedule(schedule: ExitSchedule) -> str:
    """Return the text form that ``parse_schedule`` reads back.

    >>> format_schedule(parse_schedule("2x", num_layers=24, horizon=64))
    'linear:max=16,min=8,warmup=1,horizon=64'

    Raises ScheduleError for anything but a schedule.
    """
    if not isinstance(schedule, ExitSchedule):
        raise ScheduleError("schedule", f"is {shown(schedule)}; allowed: an ExitSchedule")
    return _formatted(schedule)


@lru_cache(maxsize=256)
def _formatted(schedule: ExitSchedule) -> str:
    defaults = {"placement": "top", "prompt": "full"}
    if schedule.to_document() == {**full_arguments(schedule.num_layers), "placement": "top"}:
        return "full"
    values = {option: getattr(schedule, _FIELDS.get(option, option)) for option in _OPTIONS}
    options = ",".join(
        f"{option}={'/'.join(map(str, value)) if isinstance(value, tuple) else value}"
        for option, value in values.items()
        if value not in (None, defaults.get(option))
    )
    return f"{schedule.decay}:{options}"


def document_text(schedule: ExitSchedule) -> str:
    """Return the text of a schedule's file, which `parse_schedule` and `read_document` read."""
    return sealed_text({"schedule": schedule.to_document()})


def names_file(text: str) -> bool:
    """Return True if ``text`` is the name of a schedule's file."""
    return text.strip().lower().endswith(".json")


def read_document(text: str) -> ExitSchedule:
    """Return the schedule, of any depth, of a text `beyond_notation`. Raises ScheduleError."""
    return make_schedule(text, _document_arguments(text))


def beyond_notation(text: str) -> str | None:
    """Return what ``text`` is if it is not notation, else None.

    Files and documents are for the user of this machine, not for clients of a server.

    >>> beyond_notation("a.json"), beyond_notation('{"schedule": …'), beyond_notation("2x")
    ("a file's name", 'a document', None)
    """
    if names_file(text):
        return "a file's name"
    return "a document" if text.lstrip().startswith("{") else None


def read_arguments(text: str, *, num_layers: int, horizon: int | None = None) -> dict[str, Any]:
    """Return the arguments of ExitSchedule that ``text`` means.

    ``horizon`` is for presets and decays whose text names none. Forms::

        full                                         every token runs every layer
        2x  3x:horizon=64  2x:placement=bottom       presets, see `preset_budgets`
        linear:max=16,min=8,warmup=1,horizon=64      DECAY:max=,min=,warmup=,horizon=[,placement=]
        power:max=16,min=8,horizon=64,power=2        and exponential: rate=, step: steps=
        constant:max=12                              min and horizon are not needed
        table:table=16/16/12/8                       nor max here
        d3:max=24,min=8,alpha=0.98                   nor horizon here
        2x:placement=d3,tail=2                       a placement with a parameter
        2x:prompt=decay                              the prompt falls from all layers to max
        schedule.json                                an ExitSchedule's JSON, or a bundle's file
        {"schedule": {…}, …}                         the content of such a file

    Raises ScheduleError with all problems of the text, but does not check the schedule.
    """
    if not isinstance(text, str):
        raise ScheduleError("schedule", f"is {shown(text)}; allowed: a text, e.g. {_EXAMPLES}")
    if not isinstance(num_layers, Integral):
        raise ScheduleError("num_layers", f"is {shown(num_layers)}; allowed: an integer")
    if beyond_notation(text):
        return _document_arguments(text, num_layers)
    name, _, rest = text.strip().partition(":")
    if name == "full":
        _options(text, rest, allowed=())
        return full_arguments(num_layers)
    if preset := _PRESET.fullmatch(name):
        options = _options(text, rest, allowed=_PRESET_OPTIONS)
        largest, smallest = preset_budgets(speedup_of(preset[1]), num_layers)
        values = {"max_exit_layer": largest, "min_exit_layer": smallest, **options}
    elif name in DECAYS:
        options = _options(text, rest, allowed=_OPTIONS)
        values = {"decay": name, **implied_fields(name, options), **options}
    else:
        unknown = f"{shown(name)} is unknown" if rest else "is unknown"
        raise ScheduleError(
            f"schedule {shown(text)}",
            f"{unknown}; {did_you_mean(name, ['full', *DECAYS])}"
            f"allowed: {_EXAMPLES}; decays: {', '.join(DECAYS)}",
        )
    values = {
        "num_layers": num_layers,
        **({} if horizon is None else {"horizon": horizon}),
        **values,
    }
    _check_complete(text, values)
    return values


def implied_fields(decay: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a text may omit; ``values`` are those that it has, unchecked."""
    largest, table = values.get("max_exit_layer"), values.get("table")
    if decay == "constant" and largest is not None:
        return {"min_exit_layer": largest, "horizon": 1}
    if decay == "table" and table:
        return {"max_exit_layer": max(table), "min_exit_layer": min(table), "horizon": len(table)}
    if decay == "d3":
        horizon = d3_horizon(largest, values.get("min_exit_layer"), values.get("alpha"))
        return {"horizon": min(horizon, MAX_HORIZON)}
    return {}


def _document_arguments(text: str, num_layers: int | None = None) -> dict[str, Any]:
    """Return the arguments in a file or document: an ExitSchedule's object, or in "schedule".

    A bundle's schedule.json, whose digest is checked, and the output of ``skipdec schedule show
    --json`` have "schedule"; everything else in them follows from it. Raises ScheduleError for a
    wrong digest or a schedule of another depth; a ``num_layers`` of None accepts any.
    """
    subject = "schedule"
    if names_file(text):
        path = Path(text.strip())
        subject = f"schedule {path}"
        document: object = read_json(path, ScheduleError, subject=subject)
    else:
        document = parse_json(text, ScheduleError, subject=subject)
    if isinstance(document, dict) and "schedule" in document:
        _check_digest(document, subject)
        document = document["schedule"]
    if not isinstance(document, dict):
        raise ScheduleError(subject, f"is a JSON {json_kind(document)}; allowed: an object")
    depth = document.get("num_layers", num_layers)
    if num_layers not in (None, depth):
        raise ScheduleError(subject, f"is for {shown(depth)} layers; the model has {num_layers}")
    return document


def _check_digest(document: dict[str, Any], subject: str) -> None:
    """Raise ScheduleError for a document whose digest does not match its content."""
    if "digest" not in document:
        return
    digest = document_digest(document)
    if document["digest"] != digest:
        raise ScheduleError(
            subject,
            f"digest is {shown(document['digest'])}, its content has {digest!r}; the file was "
            "changed; keep only the inner object, or run skipdec schedule set",
        )


def _options(text: str, rest: str, *, allowed: Collection[str]) -> dict[str, Any]:
    """Parse ``key=value,…`` into an ExitSchedule's arguments."""
    values: dict[str, Any] = {}
    problems = []
    for option in rest.split(",") if rest else []:
        key, equals, value = (part.strip() for part in option.partition("="))
        field = _FIELDS.get(key, key)
        if not equals or key not in allowed:
            listed = ", ".join(f"{name}=" for name in allowed) or "none"
            meant = did_you_mean(key, allowed, among=rest.count(","))
            problems.append(f"option {shown(option)} is unknown; {meant}allowed: {listed}")
        elif field in values:
            problems.append(f"option {key!r} is given twice")
        else:
            read, wanted = _OPTIONS[key]
            try:
                values[field] = read(value)
            except ValueError:
                problems.append(f"{key} is {shown(value)}; allowed: {wanted}")
        if len(problems) == MOST_PROBLEMS:  # a long text may have thousands
            break
    if problems:
        raise ScheduleError(f"schedule {shown(text)}", *problems)
    return values


def _check_complete(text: str, values: dict[str, Any]) -> None:
    examples = {"max": 8, "min": 4, "horizon": 64}
    missing = [key for key in examples if _FIELDS.get(key, key) not in values]
    if missing:
        raise ScheduleError(
            f"schedule {shown(text)}",
            *(f"{key} is missing; add it, e.g. {key}={examples[key]}" for key in missing),
        )
