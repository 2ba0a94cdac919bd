"""Exception classes that skipdec raises on purpose, and helpers that format their messages.

Every message reads ``subject | what is wrong, the value seen, what is allowed, what to do``.
Problems with the same subject are collected and raised together:

>>> raise UsageError("SamplingParams", "top_p is 1.5; allowed: 0 < top_p <= 1", "n is 0; ...")
Traceback (most recent call last):
skipdec.engines.errors.UsageError: SamplingParams | 2 problems:
  - top_p is 1.5; allowed: 0 < top_p <= 1
  - n is 0; ...
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")

_MAX_WORD_LENGTH = 100  # characters; a longer word is not a typo and is slow to compare
_MAX_WORDS = 100  # words; each comparison takes 0.1 ms, and a JSON object may have a million keys
_SHOWN_LENGTH = 80  # characters
_MAX_BITS = 10_000  # Python refuses to print integers of more than 4,300 digits
MOST_PROBLEMS = 10  # listed per kind
_MAX_MESSAGE_LENGTH = 4_000  # of a message sent to a client
_BRACKETS: Mapping[type, tuple[str, str]] = {
    list: ("[", "]"),
    dict: ("{", "}"),
    tuple: ("(", ")"),
}
_FIELD = re.compile(r"`([A-Za-z_][\w.]*)`")  # configurations put field names in backticks


def did_you_mean(word: object, allowed: Iterable[str], *, among: int = 1) -> str:
    """Return "did you mean …? " for the nearest allowed word, or "" if none is near.

    ``among``: the number of words checked by the caller; above 100, nothing is compared.

    >>> f"'liner' is unknown; {did_you_mean('liner', ['linear', 'power'])}allowed: linear, power"
    "'liner' is unknown; did you mean 'linear'? allowed: linear, power"
    """
    if not isinstance(word, str) or len(word) > _MAX_WORD_LENGTH or among > _MAX_WORDS:
        return ""
    near = get_close_matches(word, list(allowed), n=1)
    return f"did you mean {near[0]!r}? " if near and near[0] != word else ""


def choice(table: Mapping[str, T], name: str, noun: str) -> T:
    """Return ``table[name]``. Raises UsageError, which lists the names, for an unknown one."""
    if name not in table:
        meant = did_you_mean(name, table)
        raise UsageError(noun, f"{name!r} is unknown; {meant}allowed: {', '.join(table)}")
    return table[name]


def shown(value: object) -> str:
    """Return ``repr(value)``, cut after 80 characters; a huge value costs no more than a small one.

    >>> shown("2x"), shown(list(range(10**6)))
    ("'2x'", '[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 2…')
    """
    parts: list[str] = []
    _write(value, parts, _SHOWN_LENGTH)
    text = "".join(parts)
    return text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}…"


def _write(value: object, parts: list[str], room: int) -> int:
    """Append at least the first ``room`` characters of ``repr(value)``; return the room left."""
    if isinstance(value, str | bytes):
        text = repr(value[: max(room, 0) + 1])
    elif type(value) is int and value.bit_length() > _MAX_BITS:
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
    for index, entry in enumerate(value):
        if room < 0:
            return room
        if index:
            parts.append(", ")
            room -= 2
        room = _write(entry, parts, room)
        if isinstance(value, dict):
            parts.append(": ")
            room = _write(value[entry], parts, room - 2)
    parts.append(f",{end}" if isinstance(value, tuple) and len(value) == 1 else end)
    return room - 1


def counted(count: int, noun: str) -> str:
    """Return a number of things, e.g. of ``noun`` "row".

    >>> counted(1, "row"), counted(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def few(problems: Sequence[str], count: int | None = None) -> list[str]:
    """Return the first problems, and a line that counts the rest of ``count`` in total.

    >>> few(["a is 1", "b is 2"], 1000)
    ['a is 1', 'b is 2', 'and 998 more like these']
    """
    kept = list(problems[:MOST_PROBLEMS])
    more = (len(problems) if count is None else count) - len(kept)
    return [*kept, f"and {more:,} more like these"] if more else kept


def brief(message: str) -> str:
    """Return ``message``, truncated to the length that clients are sent."""
    if len(message) <= _MAX_MESSAGE_LENGTH:
        return message
    return f"{message[:_MAX_MESSAGE_LENGTH]}… (cut; {len(message):,} characters)"


class SkipDecError(Exception):
    """Base class of every error that skipdec raises on purpose.

    ``subject`` names the file, parameter or layer at fault. Each problem says what is wrong, the
    value seen, what is allowed and what to do. ``exit_code`` is the command line's exit status.
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
    """A value given by the caller is not allowed; no work was started."""

    exit_code = 2


class ConfigurationError(UsageError):
    """Some fields are not allowed; the given ``problems`` mark field names with backticks."""

    def __init__(self, subject: str, *problems: str) -> None:
        self._marked = problems
        super().__init__(subject, *(_FIELD.sub(r"\1", problem) for problem in problems))

    def within(self, field: str) -> Iterator[str]:
        """Yield the marked problems of an outer configuration that has this one in ``field``."""
        for problem in self._marked:
            yield _FIELD.sub(rf"`{field}.\1`", problem)

    def without(self, fields: Set[str | int]) -> list[str]:
        """Return the marked problems that mention none of ``fields``."""
        return [
            problem
            for problem in self._marked
            if fields.isdisjoint(name.partition(".")[0] for name in _FIELD.findall(problem))
        ]

    def named(self, subject: str, names: Mapping[str, str]) -> UsageError:
        """Return the error with fields renamed by ``names``, e.g. to a command's options."""
        problems = (
            _FIELD.sub(lambda match: names.get(match[1], match[1]), problem)
            for problem in self._marked
        )
        return UsageError(subject, *problems)


class ScheduleError(UsageError):
    """An exit schedule is malformed, leaves a hole in a KV cache, or is for another depth."""


class CapacityError(UsageError):
    """A request needs more memory or positions than available; the message has the numbers."""


class UnsupportedModelError(UsageError):
    """A model's configuration has features that skipdec does not compile; all are listed."""


class EnvironmentMismatchError(SkipDecError):
    """This machine or installation can't do what was requested; the message names both."""

    exit_code = 3


def unloadable(library: Path, error: Exception) -> EnvironmentMismatchError:
    """Return the error for a library of skipdec's that exists but can't be loaded."""
    words = str(error)
    if os.strerror(errno.EMFILE) in words:
        remedy = "raise the limit of open files (ulimit -n)"
    elif os.strerror(errno.ENOMEM) in words or "failed to map segment" in words:
        remedy = "raise the limit of memory (ulimit -v), or free some"
    else:  # it was built for another system, processor or version
        remedy = "install skipdec again on this machine"
    return EnvironmentMismatchError(str(library), f"can't be loaded ({words}); {remedy}")


class MissingExtraError(EnvironmentMismatchError, ImportError):
    """An optional dependency is not installed; the message contains the pip command."""


class BundleError(SkipDecError):
    """A bundle is missing, incomplete, corrupt, or in use by another writer."""


class CheckpointError(SkipDecError):
    """A checkpoint can't be read: a tensor or file is missing or has the wrong shape or dtype."""


class NotFiniteError(CheckpointError):
    """A weight is NaN or infinite, or becomes so in the type in which it is stored."""


class EngineBuildError(SkipDecError):
    """TensorRT refused an engine, crashed, was stopped, or built a different engine."""


class DeviceError(SkipDecError):
    """The device or its driver refused a call; the message quotes it."""


class LogitsError(SkipDecError):
    """No token can be chosen from a row's logits: they are NaN, infinite, or all excluded."""


class VerificationError(SkipDecError):
    """An engine's output differs from its reference; the worst tensor is named."""


class OverloadedError(SkipDecError):
    """The queue is full and nothing was added to it; retry after ``retry_after`` seconds."""

    def __init__(self, subject: str, *problems: str, retry_after: float = 1.0) -> None:
        super().__init__(subject, *problems)
        self.retry_after = retry_after


class WorkerDiedError(SkipDecError):
    """The worker process that ran a request died, and its text is lost; it may be retried."""


class ClosedError(SkipDecError, RuntimeError):
    """A generator or engine was used after it was closed."""
