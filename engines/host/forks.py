"""Objects whose threads, processes or devices a forked child does not have."""

from __future__ import annotations

import os

from ..errors import SkipDecError


class HomeProcess:
    """The process that made ``owner``, which alone can use it.

    A fork copies memory, locks in whatever state, but no threads: check before any lock is taken.
    ``remedy`` says what a child should do instead.
    """

    def __init__(self, owner: str, remedy: str) -> None:
        self._owner = owner
        self._remedy = remedy
        self._id = os.getpid()

    @property
    def is_left(self) -> bool:
        """Whether this process is a fork of the one that made the owner."""
        return self._id != os.getpid()

    @property
    def refusal(self) -> str:
        """Why a forked child is refused; the end of a sentence that begins with the owner."""
        return (
            f"was opened by process {self._id}, of which this one, {os.getpid()}, is a fork: "
            f"threads and devices don't survive one; {self._remedy}, or start processes by 'spawn'"
        )

    def require(self) -> None:
        """Raise SkipDecError in a forked child."""
        if self.is_left:
            raise SkipDecError(self._owner, self.refusal)
