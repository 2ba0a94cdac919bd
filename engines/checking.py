"""Validated configurations, and a collector for the errors of several checks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, get_args, get_origin

from pydantic import BaseModel, ByteSize, ConfigDict, ValidationError, field_validator

from .documents import json_kind, lone_surrogate, parse_json
from .errors import ConfigurationError, SkipDecError, UsageError, did_you_mean, shown

if TYPE_CHECKING:
    MemorySize = int  # bytes; text such as "1.5GiB" is parsed
else:
    MemorySize = ByteSize

P = ParamSpec("P")
T = TypeVar("T")

_MAX_LENGTH = 2_000  # characters of one problem
_MAX_UNKNOWN = 10  # fields that are named
_NO_SIZE = "is {input}, not a size; allowed: e.g. 512MiB, 1.5GiB, 2GB, 1000000"
_QUOTED = re.compile(r"'([^']*)'")  # how pydantic lists a Literal's values
_TEXTS: Mapping[str, str] = {  # by pydantic's error type; the rest keep pydantic's own words
    "extra_forbidden": "is unknown; {meant}allowed: {fields}",
    "missing": "is missing; {remedy}",
    "greater_than_equal": "is {input}; allowed: {ge} or more",
    "greater_than": "is {input}; allowed: above {gt}",
    "less_than_equal": "is {input}; allowed: {le} or less",
    "less_than": "is {input}; allowed: below {lt}",
    "literal_error": "is {input}; {meant}allowed: {expected}",
    "finite_number": "is {input}; allowed: a finite number",
    "float_parsing": "is {input}; allowed: a number",
    "int_parsing": "is {input}; allowed: an integer",
    "tuple_type": "is {input}; allowed: a list, e.g. [{input}]",
    "path_type": "is {input}; allowed: a path",
    "model_type": "is {input}; allowed: a mapping of fields to values",
    "byte_size": _NO_SIZE,
    "byte_size_unit": _NO_SIZE,
}


@dataclass(frozen=True)
class Option:
    """Command-line form of a field: ``Annotated[Path | None, Option("-o", metavar="DIR")]``.

    Fields without an Option have none: only Python and the file of ``--config`` set them. The
    fields of a nested configuration become options, unless it has a ``metavar``: then one text is
    parsed. A short ``flag`` is added to ``--field-name``; a long one, or both as in
    ``-p --prompt``, replaces it, and messages use the first. ``help`` replaces the field's
    description, ``null`` is the text that means None, and ``only`` names the fields of a nested
    configuration that this command has.
    """

    flag: str = ""
    metavar: str | None = None
    help: str | None = None
    null: str | None = None
    repeated: bool = True  # for a tuple: one option per entry; False: one text for all
    is_argument: bool = False
    show_default: bool = True
    only: tuple[str, ...] | None = None


class FrozenModel(BaseModel):
    """An immutable JSON value that rejects unknown fields: a report, a record."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def parse(cls, document: Any, raises: type[SkipDecError], subject: str, *advice: str) -> Self:  # noqa: ANN401  (JSON)
        """Check a JSON value; problems are raised as ``raises(subject, …, *advice)``."""
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            problems = []
            for item in error.errors():
                field = ".".join(map(str, item["loc"])) or "the file"
                value = "missing" if item["type"] == "missing" else shown(item["input"])
                problems.append(f"{field} is {value}; {item['msg'][:1].lower()}{item['msg'][1:]}")
            raise raises(subject, *problems, *advice) from error


class ValidatedConfig(BaseModel):
    """A frozen value with a JSON round trip: ``T.from_json(config.to_json()) == config``.

    Raises UsageError, with every problem at once, for unknown fields, values that are not allowed,
    and conflicts between fields that ``_problems`` finds. Problems put field names in backticks,
    which a command replaces by its options. Each field has at most one problem, values are
    shortened, and only the first unknown fields are named, so that neither the message nor its cost
    grows with what a client sends. In a Path, ``~`` is expanded. JSON has no infinite number and no
    path that is not UTF-8, so both are refused.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    if not TYPE_CHECKING:  # type checkers derive one from the fields, as for dataclasses

        def __init__(self, /, **values: Any) -> None:  # noqa: ANN401  (pydantic checks every field)
            values = {field: plain(value) for field, value in values.items()}
            name = type(self).__name__
            unknown = [field for field in values if field not in type(self).model_fields]
            ignored = set(unknown[_MAX_UNKNOWN:])
            try:
                super().__init__(**{k: v for k, v in values.items() if k not in ignored})
            except ValidationError as error:
                problems, refused = self._described(error, values)
                if ignored:
                    problems.append(f"and {len(ignored):,} more unknown fields")
                problems += self._problems_without(refused | ignored, values)
                problems = [
                    problem if len(problem) <= _MAX_LENGTH else f"{problem[:_MAX_LENGTH]}…"
                    for problem in dict.fromkeys(problems)
                ]
                raise ConfigurationError(name, *problems) from error
            if problems := list(self._problems()):
                raise ConfigurationError(name, *problems)

    @classmethod
    def require(cls, value: object, name: str = "config") -> None:
        """Raise UsageError unless ``value``, a function's argument ``name``, is of this class."""
        if not isinstance(value, cls):
            raise UsageError(name, f"is {shown(value)}; allowed: {cls.__name__}(…)")

    @classmethod
    def _described(
        cls, error: ValidationError, values: Mapping[str, Any]
    ) -> tuple[list[str], set[str | int]]:
        """Return the messages for pydantic's errors, at most one per field, and the bad fields."""
        problems: list[str] = []
        described: set[str | int] = set()
        refused: set[str | int] = set()
        for item in error.errors(include_url=False):
            field = item["loc"][0] if item["loc"] else ""
            if item["loc"]:
                refused.add(field)
            if field in described:
                continue
            if sentences := list(cls._describe(item, values)):
                problems += sentences
                described.update(item["loc"][:1])
        return problems, refused

    @field_validator("*")
    @classmethod
    def _with_home(cls, value: object) -> object:
        """Expand ``~`` in paths."""
        if isinstance(value, Path) and lone_surrogate(str(value)):
            raise ValueError("allowed: a path in UTF-8")
        return expanded(value) if isinstance(value, Path) else value

    def _problems(self) -> Iterator[str]:
        """Yield the conflicts between fields."""
        yield from ()

    def _problems_without(self, refused: Set[str | int], values: Mapping[str, Any]) -> list[str]:
        """Return the conflicts between the fields that were not rejected."""
        fields = type(self).model_fields
        if not refused or any(fields[name].is_required() for name in fields if name in refused):
            return []
        try:
            type(self)(**{name: value for name, value in values.items() if name not in refused})
        except ConfigurationError as error:
            return error.without(refused)
        return []

    @classmethod
    def _describe(cls, item: Any, values: Mapping[str, Any]) -> Iterator[str]:  # noqa: ANN401
        """Yield the messages for one pydantic error; a nested configuration has its own."""
        names = (name for name in item["loc"] if isinstance(name, str))
        field = ".".join(name if name.isidentifier() else shown(name)[1:-1] for name in names)
        context = item.get("ctx", {})
        match context.get("error"):
            case ConfigurationError() as nested:
                yield from nested.within(field)
            case None if item["type"] == "too_short" and item["input"]:
                pass  # its entries were rejected one by one
            case SkipDecError() as error:
                yield from (f"{error.subject} {problem}" for problem in error.problems)
            case error:
                other = error or f"{item['msg'][:1].lower()}{item['msg'][1:]}"
                text = _TEXTS.get(item["type"], "is {input}; {other}")
                facts = {
                    "input": shown(item["input"]),
                    "fields": ", ".join(cls.model_fields),
                } | context
                facts["remedy"] = cls._allowed(field) or "give it"
                facts["meant"] = (
                    did_you_mean(item["loc"][-1], cls.model_fields, among=len(values))
                    if item["type"] == "extra_forbidden"
                    else did_you_mean(item["input"], _QUOTED.findall(context.get("expected", "")))
                )
                yield f"`{field}` " + text.format(**facts, other=other) if field else str(other)

    @classmethod
    def _allowed(cls, field: str) -> str:
        """Return the allowed values of a Literal field, else ""."""
        info = cls.model_fields.get(field)
        if info is None or get_origin(info.annotation) is not Literal:
            return ""
        return f"allowed: {', '.join(map(str, get_args(info.annotation)))}"

    def updated(self, /, **changes: Any) -> Self:  # noqa: ANN401  (checked by pydantic)
        """Return a copy with some fields changed, checked like a new one."""
        given = {name: value for name, value in self if name in self.model_fields_set}
        return type(self)(**(given | changes))

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as JSON values, every field included."""
        return self.model_dump(mode="json")

    def to_json(self) -> str:
        """Return ``to_dict`` as text, indented by two spaces."""
        return self.model_dump_json(indent=2)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parse the output of `to_json`. Raises UsageError for broken JSON and bad values."""
        document = parse_json(text, UsageError, subject=cls.__name__)
        if not isinstance(document, dict):
            raise UsageError(cls.__name__, f"is a JSON {json_kind(document)}; expected an object")
        return cls(**document)


def plain(value: Any) -> Any:  # noqa: ANN401  (any value)
    """Convert numpy and torch values to Python's own, e.g. ``np.int64(3)`` to 3; keep others."""
    return value.tolist() if hasattr(value, "tolist") else value


def as_path(path: str | Path) -> Path:
    """Return ``path`` as a Path. Raises UsageError for anything that is not a path."""
    if not isinstance(path, str | PathLike):
        raise UsageError("path", f"is {shown(path)}; allowed: a text or a Path")
    return Path(path)


def expanded(path: str | Path) -> Path:
    """Return ``path`` with ``~`` expanded; unchanged if the home directory is unknown."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def name_of(path: str | Path) -> str:
    """Return the last part of the path to which ``path`` leads, even in a loop of links."""
    return Path(os.path.realpath(expanded(path))).name


def split_at_commas(value: object, *, example: str = "256,1024,2048") -> object:
    """Parse comma-separated numbers, as a tuple's BeforeValidator; other values pass through.

    >>> split_at_commas("256, 1024")
    (256, 1024)
    """
    if not isinstance(value, str):
        return value
    words = tuple(word.strip() for word in value.split(","))
    if not all(word.isdecimal() for word in words):
        raise ValueError(f"allowed: comma-separated whole numbers, e.g. {example}")
    return tuple(map(int, words))


def field_problems(
    name: str, check: Callable[P, object], *args: P.args, **kwargs: P.kwargs
) -> Iterator[str]:
    """Yield what ``check(*args)``, which raises UsageError, finds wrong with field ``name``."""
    try:
        check(*args, **kwargs)
    except UsageError as error:
        yield from (f"`{name}` {problem}" for problem in error.problems)


class Problems:
    """Runs checks of ``subject``, e.g. ``export``, and collects the errors they raise."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.errors: list[SkipDecError] = []

    def attempt(self, check: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return the check's result, or None if it failed."""
        try:
            return check(*args, **kwargs)
        except SkipDecError as error:
            self.errors.append(error)
            return None

    def error(self) -> SkipDecError:
        """Return one error with all problems; a single error is returned as it is."""
        if len(self.errors) == 1:
            return self.errors[0]
        return UsageError(
            self.subject,
            *(f"{error.subject}: {text}" for error in self.errors for text in error.problems),
        )
