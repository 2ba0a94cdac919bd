"""This process: its forks, its open files and its garbage collector."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


_LISTED = Path("/proc/self/fd")


def open_descriptors() -> int:
    """Count the descriptors that are open (Linux; elsewhere 0)."""
    try:
        return len(list(_LISTED.iterdir())) - 1  # without the directory's own
    except OSError:
        return 0


def raise_descriptor_limit(wanted: int) -> int:
    """Raise the soft limit (``ulimit -n``) towards ``wanted`` and return what it is then.

    It goes no higher than the hard limit and is never lowered.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if raised <= soft:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    except (OSError, ValueError):  # a container's policy
        return soft
    return raised


@contextmanager
def collection_paused() -> Iterator[None]:
    """Collect no reference cycles in the ``with`` block; afterwards as before it.

    Importing torch and tracing make a million objects that mostly stay: looking through them again
    and again for cycles is a quarter of their time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
