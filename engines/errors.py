"""The one tree of errors that skipdec raises on purpose.

Every message reads ``subject | what is wrong, the value seen, what is allowed, what to do``.
Problems of one subject are collected and raised together:

>>> raise UsageError("SamplingParams", "top_p is 1.5; allowed: 0 < top_p <= 1", "n is 0; ...")
Traceback (most recent call last):
skipdec.engines.errors.UsageError: SamplingParams | 2 problems:
  - top_p is 1.5; allowed: 0 < top_p <= 1
  - n is 0; ...
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from difflib import get_close_matches
from typing import Any, ClassVar

_LONG = 100  # characters: no slip of the pen, and slow to compare
_MANY = 100  # words: a comparison takes 0.1 ms, and a line of JSON may have a million keys
_SHOWN = 80  # characters of a value
_MOST_BITS = 10_000  # of a number; Python refuses to write more than 4,300 digits
MOST_PROBLEMS = 10  # of one kind that are listed
_MOST_CHARACTERS = 4_000  # of a message to a client
_BRACKETS: Mapping[type, tuple[str, str]] = {
    list: ("[", "]"),
    dict: ("{", "}"),
    tuple: ("(", ")"),
}
_FIELD = re.compile(r"`([A-Za-z_][\w.]*)`")  # as configurations write a field's name


def did_you_mean(word: object, allowed: Iterable[str], *, among: int = 1) -> str:
    """The question that stands before what is allowed; "" where nothing is near.

    ``among``: how many words are looked at in one go; of more than a hundred none is compared.

    >>> f"'liner' is unknown; {did_you_mean('liner', ['linear', 'power'])}allowed: linear, power"
    "'liner' is unknown; did you mean 'linear'? allowed: linear, power"
    """
    if not isinstance(word, str) or len(word) > _LONG or among > _MANY:
        return ""
    near = get_close_matches(word, list(allowed), n=1)
    return f"did you mean {near[0]!r}? " if near else ""


def shown(value: object) -> str:
    """Return ``repr(value)``, cut after 80 characters; a huge value costs no more than a small one.

    >>> shown("2x"), shown(list(range(10**6)))
    ("'2x'", '[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 2…')
    """
    parts: list[str] = []
    _write(value, parts, _SHOWN)
    text = "".join(parts)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _write(value: object, parts: list[str], room: int) -> int:
    """Append what ``repr(value)`` begins with, ``room`` characters or more; return what is left."""
    if isinstance(value, str | bytes):
        text = repr(value[: max(room, 0) + 1])
    elif type(value) is int and value.bit_length() > _MOST_BITS:
        text = f"a number of {value.bit_length():,} bits"
    elif type(value) in _BRACKETS and value:
        return _write_entries(value, parts, room)
    else:
        text = repr(value)
    parts.append(text)
    return room - len(text)


def _write_entries(value: Any, parts: list[str], room: int) -> int:  # noqa: ANN401
    begin, end = _BRACKETS[type(value)]
    parts.append(begin)
    room -= 1
    for place, entry in enumerate(value):
        if room < 0:
            return room
        if place:
            parts.append(", ")
            room -= 2
        room = _write(entry, parts, room)
        if isinstance(value, dict):
            parts.append(": ")
            room = _write(value[entry], parts, room - 2)
    parts.append(f",{end}" if isinstance(value, tuple) and len(value) == 1 else end)
    return room - 1


def few(problems: Sequence[str], count: int | None = None) -> list[str]:
    """Return the first of ``problems``, and how many there are beyond: ``count`` in all.

    >>> few(["a is 1", "b is 2"], 1000)
    ['a is 1', 'b is 2', 'and 998 more like these']
    """
    kept = list(problems[:MOST_PROBLEMS])
    more = (len(problems) if count is None else count) - len(kept)
    return [*kept, f"and {more:,} more like these"] if more else kept


def brief(message: str) -> str:
    """Return ``message``, cut where it is longer than a client is sent."""
    if len(message) <= _MOST_CHARACTERS:
        return message
    return f"{message[:_MOST_CHARACTERS]}… (cut; {len(message):,} characters)"


class SkipDecError(Exception):
    """Base of every error that skipdec raises on purpose.

    ``subject`` names what was looked at (a file, a parameter, a layer); each problem says what is
    wrong, the value seen, what is allowed and what to do. ``exit_code`` is the command line's.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, subject: str, *problems: str) -> None:
        if not problems:
            raise TypeError("an error needs at least one problem")
        self.subject = subject
        self.problems = problems
        super().__init__(subject, *problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return f"{self.subject} | {self.problems[0]}"
        lines = "".join(f"\n  - {problem}" for problem in self.problems)
        return f"{self.subject} | {len(self.problems)} problems:{lines}"


class UsageError(SkipDecError, ValueError):
    """A value given by the caller is not allowed; nothing was started."""

    exit_code = 2


class ConfigurationError(UsageError):
    """Fields that are not allowed; ``problems`` have their names in backticks until here."""

    def __init__(self, subject: str, *problems: str) -> None:
        self._marked = problems
        super().__init__(subject, *(_FIELD.sub(r"\1", problem) for problem in problems))

    def within(self, field: str) -> Iterator[str]:
        """The problems, marked, of a configuration that has this one in ``field``."""
        for problem in self._marked:
            yield _FIELD.sub(rf"`{field}.\1`", problem)

    def without(self, fields: Set[str | int]) -> list[str]:
        """The problems, marked, that name none of ``fields``."""
        return [
            problem
            for problem in self._marked
            if fields.isdisjoint(name.partition(".")[0] for name in _FIELD.findall(problem))
        ]

    def named(self, subject: str, names: Mapping[str, str]) -> UsageError:
        """The same for someone who knows fields by other ``names``: a command's user."""
        problems = (
            _FIELD.sub(lambda match: names.get(match[1], match[1]), problem)
            for problem in self._marked
        )
        return UsageError(subject, *problems)


class ScheduleError(UsageError):
    """An exit schedule is malformed, leaves a hole in a KV cache, or belongs to another depth."""


class CapacityError(UsageError):
    """A request needs more memory or positions than there are; the numbers are in the text."""


class UnsupportedModelError(UsageError):
    """A model's configuration has features that skipdec does not compile; all are listed."""


class EnvironmentMismatchError(SkipDecError):
    """This machine or installation can't do what was asked; both sides are named."""

    exit_code = 3


class MissingExtraError(EnvironmentMismatchError, ImportError):
    """An optional dependency is not installed; the text holds the pip command."""


class BundleError(SkipDecError):
    """A bundle is missing, incomplete, corrupt, or in use by another writer."""


class CheckpointError(SkipDecError):
    """A checkpoint can't be read: a tensor or file is missing, or has another shape or type."""


class EngineBuildError(SkipDecError):
    """TensorRT refused an engine, crashed, was stopped, or built another than was asked for."""


class DeviceError(SkipDecError):
    """The device or its driver refused a call; the text holds its own words."""


class LogitsError(SkipDecError):
    """A row's logits allow no token to be chosen: NaN, infinite, or all of them excluded."""


class VerificationError(SkipDecError):
    """An engine does not compute what its reference does; the worst tensor is named."""


class OverloadedError(SkipDecError):
    """Too much waits already; nothing was queued. Try again after ``retry_after`` seconds."""

    def __init__(self, subject: str, *problems: str, retry_after: float = 1.0) -> None:
        super().__init__(subject, *problems)
        self.retry_after = retry_after


class WorkerDiedError(SkipDecError):
    """The process that ran a request has ended, and with it the text; it may be asked for again."""


class ClosedError(SkipDecError, RuntimeError):
    """A generator or engine was used after it was closed."""
