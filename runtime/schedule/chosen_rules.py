"""The two rules that a schedule names, made with their parameters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields as fields_of
from typing import Any

from ...engines.checking import plain
from ...engines.errors import MOST_PROBLEMS, ScheduleError, did_you_mean, few, shown
from ...engines.registry import Registry
from .decays import DECAYS, Decay
from .fields import ScheduleFields, field_problems
from .placements import PLACEMENTS, Placement
from .rule import Rule, parameters_of


def choose_rules(
    fields: ScheduleFields, parameters: Mapping[str, object]
) -> tuple[Decay, Placement]:
    """Return the decay and the placement of ``fields``, made with ``parameters``.

    A parameter that is None is not given; numbers and arrays of numpy or torch are Python's, lists
    are tuples. Raises ScheduleError with all problems; what a rule says
    of its parameters and bounds is asked where everything else is sound.
    """
    given = {name: _plain(value) for name, value in parameters.items() if value is not None}
    problems = unknown_keys(given) if given else []
    for kind, registry in (("decay", DECAYS), ("placement", PLACEMENTS)):
        name = getattr(fields, kind)
        if not isinstance(name, str) or name not in registry:
            meant = did_you_mean(name, registry)
            problems.append(f"{kind} is {shown(name)}; {meant}allowed: {', '.join(registry)}")
        else:
            problems += _parameter_problems(f"{kind} {name}", registry, registry.load(name), given)
    if problems := [*problems, *field_problems(fields)]:
        raise ScheduleError("exit schedule", *problems)
    decay: Decay = _make(DECAYS.load(fields.decay), given)
    placement: Placement = _make(PLACEMENTS.load(fields.placement), given)
    if problems := [*decay.problems(fields), *placement.problems(fields)]:
        raise ScheduleError("exit schedule", *problems)
    return decay, placement


def unknown_keys(keys: Collection[object]) -> list[str]:
    """Return a problem for each key that is neither a field nor a parameter of any rule."""
    known = [field.name for field in fields_of(ScheduleFields)]
    known += parameters_of(DECAYS, PLACEMENTS)
    unknown = [key for key in keys if key not in known]
    problems = [
        f"key {shown(key)} is unknown; {did_you_mean(key, known, among=len(keys))}"
        f"allowed: {', '.join(known)}"
        for key in unknown[:MOST_PROBLEMS]
    ]
    return few(problems, len(unknown))


def _parameter_problems(
    chosen: str, registry: Registry, rule: type[Rule], given: Mapping[str, object]
) -> list[str]:
    own = rule.parameters()
    others = [name for name in given if name not in own]
    known = parameters_of(registry) if others else {}
    return [
        *(f"{name} is {shown(given[name])}; {chosen} has none" for name in others if name in known),
        *(f"{name} is missing; {chosen} needs it" for name in own if name not in given),
    ]


def _plain(value: object) -> object:
    value = plain(value)
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


def _make(rule: Any, given: Mapping[str, object]) -> Any:  # noqa: ANN401  (any rule's class)
    return rule(**{name: given[name] for name in rule.parameters()})
