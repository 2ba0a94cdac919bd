"""Checks that name everything wrong at once: configurations, and one check after another."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from .errors import SkipDecError, UsageError

P = ParamSpec("P")
T = TypeVar("T")


class ValidatedConfig(BaseModel):
    """A frozen value with a JSON round trip: ``T.from_json(config.to_json()) == config``.

    Raises UsageError, with every problem at once, for an unknown field or a value that is not
    allowed, and for what ``_problems`` finds wrong in fields that are right one by one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **values: Any) -> None:  # noqa: ANN401  (pydantic checks every field)
        name = type(self).__name__
        try:
            super().__init__(**values)
        except ValidationError as error:
            problems = [text for item in error.errors() for text in self._describe(item)]
            raise UsageError(name, *problems) from error
        if problems := list(self._problems()):
            raise UsageError(name, *problems)

    def _problems(self) -> Iterator[str]:
        """What the fields get wrong together."""
        yield from ()

    @classmethod
    def _describe(cls, item: Any) -> list[str]:  # noqa: ANN401  (pydantic's ErrorDetails)
        """The sentences for one of pydantic's errors; a nested configuration has its own."""
        field = ".".join(map(str, item["loc"]))
        nested = item.get("ctx", {}).get("error")
        if isinstance(nested, SkipDecError):
            return [f"{field}.{problem}" for problem in nested.problems]
        if item["type"] == "extra_forbidden":
            return [f"{field} is unknown; allowed: {', '.join(cls.model_fields)}"]
        if item["type"] == "missing":
            return [f"{field} is missing; give it"]
        return [f"{field} is {item['input']!r}; {item['msg'][:1].lower()}{item['msg'][1:]}"]

    def to_json(self) -> str:
        """The configuration as a JSON object, every field included."""
        return self.model_dump_json(indent=2)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read what `to_json` wrote. Raises UsageError for broken JSON and bad values."""
        try:
            document = json.loads(text)
        except ValueError as error:
            raise UsageError(cls.__name__, f"is not JSON ({error})") from error
        if not isinstance(document, dict):
            raise UsageError(
                cls.__name__, f"is a JSON {type(document).__name__}; expected an object"
            )
        return cls(**document)


class Problems:
    """Runs checks one after another and keeps what each of them raises.

    ``subject`` names what all the checks are for, e.g. ``export``.
    """

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.errors: list[SkipDecError] = []

    def attempt(self, check: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return the check's result, None if it failed."""
        try:
            return check(*args, **kwargs)
        except SkipDecError as error:
            self.errors.append(error)
            return None

    def error(self) -> SkipDecError:
        """One error with every problem kept; the only one itself, so that its type is not lost."""
        if len(self.errors) == 1:
            return self.errors[0]
        return UsageError(
            self.subject,
            *(f"{error.subject}: {text}" for error in self.errors for text in error.problems),
        )
