"""The limits of what a template may do, and the budget of one rendering.

Steps are counted, a text is measured before it is made, and the clock is read, so that a rendering
that runs away ends in a LimitError.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from time import thread_time
from typing import Any

from jinja2 import TemplateError

MAX_RENDERED = 1 << 22  # characters of all that is written, and of any one value
MAX_STEPS = 200_000  # rounds of loops and calls of macros
MAX_SECONDS = 2.0  # of this thread's processor time
MAX_RANGE = 100_000  # numbers of one range, and items that a filter takes
MAX_MADE = 1 << 26  # characters that filters and methods return, all together
MAX_BITS = 4096  # of an integer


class LimitError(TemplateError):
    """A template does more than it may."""


@dataclass
class Budget:
    """How much one rendering may still do."""

    ends: float  # of thread_time
    steps: int = MAX_STEPS
    characters: int = MAX_RENDERED
    made: int = MAX_MADE

    @classmethod
    def fresh(cls) -> Budget:
        """Return what a rendering may do that begins now."""
        return cls(thread_time() + MAX_SECONDS)

    def step(self, characters: int) -> None:
        """Count a step and the characters that it writes; as all of these, raises LimitError."""
        self.steps -= 1
        if self.steps < 0:
            raise LimitError(f"runs more than {MAX_STEPS:,} rounds of loops")
        self.look()
        self.write(characters)

    def look(self) -> None:
        """Read the clock."""
        if thread_time() > self.ends:
            raise LimitError(f"runs longer than {MAX_SECONDS:g} s")

    def make(self, value: object) -> None:
        """Count a value that a filter or a method returned."""
        self.made -= len(value) if isinstance(value, str) else 0
        if self.made < 0:
            raise LimitError(f"makes more than {MAX_MADE:,} characters")

    def write(self, characters: int) -> None:
        """Count characters that are written."""
        self.characters -= characters
        if self.characters < 0:
            raise LimitError(f"writes more than {MAX_RENDERED:,} characters")


_BUDGET: ContextVar[Budget | None] = ContextVar("budget", default=None)


def current_budget() -> Budget:
    """Return the budget of this rendering, or a fresh one while constants are computed."""
    return _BUDGET.get() or Budget.fresh()


@contextmanager
def limited() -> Iterator[None]:
    """Give what runs inside, in this thread, a fresh budget."""
    token = _BUDGET.set(Budget.fresh())
    try:
        yield
    finally:
        _BUDGET.reset(token)


def text_of(value: object) -> str:
    """Return the text of a value; raises LimitError before making one that is too long."""
    if not isinstance(value, str):
        require_length(measured(value))
    return str(value)


def fitting(values: Iterable[Any]) -> list[Any]:
    """Return the values as a list; their texts together must not be too long."""
    listed = list(islice(values, MAX_RENDERED))
    total = 0
    for value in listed:
        total += len(value) if isinstance(value, str) else measured(value)
        require_length(total)
    return listed


def measured(value: object) -> int:
    """Return a lower bound on the length of a value's text, at most one step beyond the limit."""
    size, waiting = 0, [value]
    while waiting and size <= MAX_RENDERED:
        each = waiting.pop()
        size += 1
        match each:
            case str():
                size += len(each)
            case list() | tuple():
                waiting += each[: MAX_RENDERED - size + 1]
            case dict():
                waiting += (*each.keys(), *each.values())
    return size


def is_long(value: object) -> bool:
    """Return whether a value has a length that sums and products add up."""
    return isinstance(value, str | list | tuple)


def require_length(length: int) -> None:
    """Raise LimitError for a value that would be too long."""
    if length > MAX_RENDERED:
        raise LimitError(f"makes a value of {length:,} characters; allowed: {MAX_RENDERED:,}")


def require_product(left: object, right: object) -> None:
    """Raise LimitError for operands of ``*`` whose product would be too long."""
    for long, times in ((left, right), (right, left)):
        if isinstance(long, str | list | tuple) and isinstance(times, int):
            require_length(len(long) * times)
    if isinstance(left, int) and isinstance(right, int):
        require_bits(left.bit_length() + right.bit_length())


def require_bits(bits: int) -> None:
    """Raise LimitError for an integer that would have too many bits."""
    if bits > MAX_BITS:
        raise LimitError(f"computes an integer of up to {bits:,} bits")
