"""Variables of a chat template, given as texts of a command or as values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ...engines.documents import MAX_NESTING
from ...engines.errors import UsageError, shown


def read_variables(given: Iterable[str]) -> dict[str, Any]:
    """Return the variables of ``NAME=VALUE`` texts; a value is JSON, or else a text.

    >>> read_variables(["enable_thinking=false", "style=short"])
    {'enable_thinking': False, 'style': 'short'}

    Raises UsageError for a text of another form, and for a name that is given twice.
    """
    variables: dict[str, Any] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name.isidentifier() or name in variables:
            problem = "gives a name twice" if name in variables else "is not NAME=VALUE"
            raise UsageError("template_variable", f"{shown(text)} {problem}")
        try:
            variables[name] = json.loads(value)
        except (ValueError, RecursionError):
            variables[name] = value
    return variables


def plain_value(value: object, subject: str, depth: int = MAX_NESTING) -> Any:  # noqa: ANN401  (any JSON value)
    """Return a value of plain JSON types. Raises UsageError for any other."""
    if depth <= 0:
        raise UsageError(subject, f"is nested deeper than {MAX_NESTING} levels")
    match value:
        case bool() | None | int() | float():
            return value
        case str():
            return str(value)
        case list() | tuple():
            return [plain_value(one, subject, depth - 1) for one in value]
        case Mapping() if all(isinstance(name, str) for name in value):
            return {str(name): plain_value(one, subject, depth - 1) for name, one in value.items()}
    raise UsageError(subject, f"has {shown(value)}; allowed: values that JSON has")
