"""Checks that all run, however many of them fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ..engines.errors import SkipDecError, UsageError

P = ParamSpec("P")
T = TypeVar("T")


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
