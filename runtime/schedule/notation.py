"""The text of a schedule, read into the arguments that make it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...engines.documents import document_digest, parse_json, read_json
from ...engines.errors import MOST_PROBLEMS, ScheduleError, did_you_mean, shown
from ...engines.manifest import json_digest
from ...engines.registry import Registry
from .decays import DECAYS
from .placements import PLACEMENTS
from .presets import preset_budgets, speedup_of
from .rule import INTEGER, NAME, Notation, parameters_of

FIELDS = {  # by option; the parameters of decays and placements are options of their own name
    "max": "max_exit_layer",
    "min": "min_exit_layer",
    "warmup": "warmup_layers",
    "horizon": "horizon",
    "placement": "placement",
    "prompt": "prompt",
}
_NAMES = ("placement", "prompt")
_PRESET = re.compile(r"([0-9]+(?:\.[0-9]+)?)x")
EXAMPLES = "full, 2x, 2x:horizon=64, linear:max=16,min=8,warmup=1,horizon=64, a file.json"


def beyond_notation(text: str) -> str | None:
    """Return what ``text`` is where reading it takes more than the notation; None: it is notation.

    Such schedules are for the user of this machine, not for clients of a server.

    >>> beyond_notation("a.json"), beyond_notation('{"schedule": …'), beyond_notation("2x")
    ("a file's name", 'a document', None)
    """
    if text.strip().lower().endswith(".json"):
        return "a file's name"
    return "a document" if text.lstrip().startswith("{") else None


def read_arguments(text: str, *, num_layers: int, horizon: int | None = None) -> dict[str, Any]:
    """Return the arguments of ExitSchedule that ``text`` stands for.

    ``horizon`` serves presets and decays whose text names none. Forms::

        full                                         every token runs every layer
        2x  3x:horizon=64  2x:placement=bottom       presets, see presets.py
        linear:max=16,min=8,warmup=1,horizon=64      DECAY:max=,min=,warmup=,horizon=[,placement=]
        power:max=16,min=8,horizon=64,power=2        and exponential: rate=, step: steps=
        constant:max=12                              min and horizon are not needed
        table:table=16/16/12/8                       nor max here
        d3:max=24,min=8,alpha=0.98                   nor horizon here
        2x:placement=d3,tail=2                       a placement with a parameter
        2x:prompt=decay                              the prompt falls from all layers to max
        schedule.json                                an ExitSchedule's JSON, or a bundle's file
        {"schedule": {…}, …}                         what such a file holds

    Raises ScheduleError, all problems of the text at once; the schedule's own are not looked for.
    """
    if not isinstance(text, str):
        raise ScheduleError("schedule", f"is {shown(text)}; allowed: a text, e.g. {EXAMPLES}")
    name, _, rest = text.strip().partition(":")
    if text.strip().endswith(".json"):
        return read_document(Path(text.strip()), num_layers=num_layers)
    if text.lstrip().startswith("{"):
        document = parse_json(text, ScheduleError, subject="schedule")
        return _document_arguments(document, "schedule", num_layers)
    if name == "full":
        _options(text, rest, allowed={})
        return full_arguments(num_layers)
    if preset := _PRESET.fullmatch(name):
        options = _options(text, rest, allowed=_notations(("horizon", "placement"), PLACEMENTS))
        largest, smallest = preset_budgets(speedup_of(preset[1]), num_layers)
        values = {"max_exit_layer": largest, "min_exit_layer": smallest, **options}
    elif name in DECAYS:
        fields = ("max", "min", "warmup", "horizon", "placement")
        options = _options(text, rest, allowed=_notations(fields, DECAYS, PLACEMENTS))
        values = {"decay": name, **DECAYS.load(name).implied(options), **options}
    else:
        raise ScheduleError(
            f"schedule {shown(text)}",
            f"{shown(name)} is unknown; {did_you_mean(name, ['full', *DECAYS])}"
            f"allowed: {EXAMPLES}; decays: {', '.join(DECAYS)}",
        )
    values = {
        "num_layers": num_layers,
        **({} if horizon is None else {"horizon": horizon}),
        **values,
    }
    _check_complete(text, values)
    return values


def full_arguments(num_layers: int) -> dict[str, Any]:
    """Return the arguments of the schedule that runs all layers for every token."""
    return {
        "num_layers": num_layers,
        "max_exit_layer": num_layers,
        "min_exit_layer": num_layers,
        "warmup_layers": 0,
        "horizon": 1,
        "decay": "constant",
    }


def read_document(path: Path, *, num_layers: int) -> dict[str, Any]:
    """Read a JSON file: an ExitSchedule's object, or one that holds it under "schedule".

    A bundle's schedule.json is such a file, with a digest that is checked; so is what
    ``skipdec schedule show --json`` prints. What else they hold follows from the schedule.

    Raises ScheduleError for a file that can't be read, a digest that does not match, or a
    schedule of another depth.
    """
    subject = f"schedule {path}"
    return _document_arguments(read_json(path, ScheduleError, subject=subject), subject, num_layers)


def _document_arguments(document: object, subject: str, num_layers: int) -> dict[str, Any]:
    """Return the arguments that a JSON value holds; see ``read_document``."""
    if isinstance(document, dict) and "schedule" in document:
        _check_digest(document, subject)
        document = document["schedule"]
    if not isinstance(document, dict):
        raise ScheduleError(subject, f"is a JSON {type(document).__name__}; allowed: an object")
    depth = document.get("num_layers", num_layers)
    if depth != num_layers:
        raise ScheduleError(subject, f"is for {shown(depth)} layers; the model has {num_layers}")
    return document


def _check_digest(document: dict[str, Any], subject: str) -> None:
    """Raise ScheduleError where a document has a digest that is not its own.

    Without a plan it is of bundle format 2, whose digest was that of the schedule alone.
    """
    if "digest" not in document:
        return
    is_old = "plan" not in document
    digest = json_digest(document["schedule"]) if is_old else document_digest(document)
    if document["digest"] != digest:
        raise ScheduleError(
            subject,
            f"digest is {shown(document['digest'])}, its content has {digest!r}; the file was "
            "changed; keep only the inner object, or run skipdec schedule set",
        )


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
        field = FIELDS.get(key, key)
        if not equals or key not in allowed:
            listed = ", ".join(f"{name}=" for name in allowed) or "none"
            meant = did_you_mean(key, allowed, among=rest.count(","))
            problems.append(f"option {shown(option)} is unknown; {meant}allowed: {listed}")
        elif field in values:
            problems.append(f"option {key!r} is given twice")
        else:
            try:
                values[field] = allowed[key].read(value)
            except ValueError:
                problems.append(f"{key} is {shown(value)}; allowed: {allowed[key].wanted}")
        if len(problems) == MOST_PROBLEMS:  # of thousands that a long text may hold
            break
    if problems:
        raise ScheduleError(f"schedule {shown(text)}", *problems)
    return values


def _check_complete(text: str, values: dict[str, Any]) -> None:
    examples = {"max": 8, "min": 4, "horizon": 64}
    missing = [key for key in examples if FIELDS[key] not in values]
    if missing:
        raise ScheduleError(
            f"schedule {shown(text)}",
            *(f"{key} is missing; add it, e.g. {key}={examples[key]}" for key in missing),
        )
