"""The text of a schedule, read into the arguments that make it, and presets such as ``2x``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from ...engines.documents import document_digest, parse_json, read_json
from ...engines.errors import MOST_PROBLEMS, ScheduleError, did_you_mean, shown
from .decays import DECAYS
from .placements import PLACEMENTS
from .rule import INTEGER, NAME, Notation, Rule, parameters_of, round_half_up

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
_MAX_DIGITS = 40  # of a speed-up, which an error shows as a float
EXAMPLES = "full, 2x, 2x:horizon=64, linear:max=16,min=8,warmup=1,horizon=64, a file.json"


def beyond_notation(text: str) -> str | None:
    """Return what else ``text`` is, or None if it is notation.

    Files and documents are for the user of this machine, not for clients of a server.

    >>> beyond_notation("a.json"), beyond_notation('{"schedule": …'), beyond_notation("2x")
    ("a file's name", 'a document', None)
    """
    if text.strip().lower().endswith(".json"):
        return "a file's name"
    return "a document" if text.lstrip().startswith("{") else None


def read_arguments(text: str, *, num_layers: int, horizon: int | None = None) -> dict[str, Any]:
    """Return the arguments of ExitSchedule that ``text`` means.

    ``horizon`` serves presets and decays whose text names none. Forms::

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

    Raises ScheduleError with all problems of the text; those of the schedule are not looked for.
    """
    if not isinstance(text, str):
        raise ScheduleError("schedule", f"is {shown(text)}; allowed: a text, e.g. {EXAMPLES}")
    name, _, rest = text.strip().partition(":")
    if text.strip().endswith(".json"):
        path = Path(text.strip())
        subject = f"schedule {path}"
        document = read_json(path, ScheduleError, subject=subject)
        return _document_arguments(document, subject, num_layers)
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
        values = {"decay": name, **DECAYS[name].implied(options), **options}
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


def _document_arguments(document: object, subject: str, num_layers: int) -> dict[str, Any]:
    """Return the arguments in a JSON value: an ExitSchedule's object, or that under "schedule".

    A bundle's schedule.json, whose digest is checked, and the output of ``skipdec schedule show
    --json`` have "schedule"; everything else in them follows from it. Raises ScheduleError for a
    wrong digest or a schedule of another depth.
    """
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


def _notations(fields: tuple[str, ...], *tables: Mapping[str, type[Rule]]) -> dict[str, Notation]:
    """Return the options that a text may have: ``fields``, all rules' parameters, and prompt."""
    notations = {key: NAME if key in _NAMES else INTEGER for key in fields}
    return {**notations, **parameters_of(*tables), "prompt": NAME}


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


def speedup_of(digits: str) -> Fraction:
    """Return the number before a preset's ``x``.

    Raises ScheduleError for one of more than 40 digits.
    """
    if len(digits) > _MAX_DIGITS:
        raise ScheduleError(
            f"preset {digits[:_MAX_DIGITS]}…x",
            f"has {len(digits):,} digits; allowed: {_MAX_DIGITS}, e.g. 2x or 2.5x",
        )
    return Fraction(digits)


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


def _preset_formula(speedup: Fraction, num_layers: int) -> tuple[int, int] | None:
    if speedup <= 0:
        return None
    smallest = 2 * round_half_up(num_layers / (3 * speedup))
    largest = round_half_up(2 * num_layers / speedup) - smallest
    fits = 1 < smallest <= largest <= num_layers
    return (largest, smallest) if fits else None
