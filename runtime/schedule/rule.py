"""Rules with parameters of their own: the common base of decays and placements."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, cast, get_type_hints

from ...engines.registry import Registry
from .fields import ScheduleFields


@dataclass(frozen=True)
class Notation:
    """Notation of a value in a schedule's text; ``read`` raises ValueError for any other text."""

    wanted: str
    read: Callable[[str], object]


def _number(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() else number


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(entry) for entry in text.split("/"))


INTEGER = Notation("an integer", int)
NAME = Notation("a name", str)
_NOTATIONS: Mapping[object, Notation] = {
    int: INTEGER,
    float: Notation("a number", _number),
    tuple[int, ...]: Notation("integers, e.g. 16/16/12/8", _integers),
}


class Rule:
    """A decay or a placement: a frozen dataclass whose fields are the rule's parameters.

    A parameter's name is its key in a schedule's text and JSON, and its keyword at ExitSchedule.
    Its type is ``int``, ``float`` or ``tuple[int, ...]``, which is ``16/16/12/8`` in text and a
    list in JSON; rules that share a name share its type. Values come unchecked: ``problems`` is
    called before anything else.
    """

    searched: ClassVar[tuple[str, ...]] = ("",)
    """The options, as text, with which ``skipdec fit`` tries this rule unless told otherwise."""

    @classmethod
    def parameters(cls) -> Mapping[str, Notation]:
        """Return the rule's parameters, in the order of their declaration."""
        return _parameters(cast(Hashable, cls))

    def values(self) -> dict[str, Any]:
        """Return the value of each parameter."""
        return {name: getattr(self, name) for name in self.parameters()}

    def problems(self, schedule: ScheduleFields) -> list[str]:
        """Return what is wrong with the parameters, and why ``schedule`` does not fit this rule.

        The fields of ``schedule`` are sound by themselves.
        """
        return []


def parameters_of(*registries: Registry) -> dict[str, Notation]:
    """Return the parameters of all rules in ``registries``."""
    rules = [registry.load(name) for registry in registries for name in registry]
    return {name: notation for rule in rules for name, notation in rule.parameters().items()}


@cache
def _parameters(rule: Any) -> Mapping[str, Notation]:  # noqa: ANN401  (any rule's class)
    types = get_type_hints(rule)
    return {field.name: _NOTATIONS[types[field.name]] for field in fields(rule)}
