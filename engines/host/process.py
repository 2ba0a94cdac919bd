"""This process: its forks, its open files, its garbage collector, and native work at its exit."""

from __future__ import annotations

import atexit
import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, Lock, Thread, current_thread, get_ident
from time import monotonic, sleep
from types import TracebackType

from ..errors import ClosedError, SkipDecError


class HomeProcess:
    """The only process that can use ``owner``: the one that made it.

    A fork copies memory, including locks in any state, but no threads: check before any lock is
    taken. ``remedy`` says what a child should do instead.
    """

    def __init__(self, owner: str, remedy: str) -> None:
        self._owner = owner
        self._remedy = remedy
        self._id = os.getpid()

    @property
    def is_left(self) -> bool:
        """Return True in a fork of the process that made the owner."""
        return self._id != os.getpid()

    @property
    def refusal(self) -> str:
        """Return the reason for refusing a fork, without the owner as its subject."""
        return (
            f"was opened by process {self._id}, of which this one, {os.getpid()}, is a fork: "
            f"threads and devices don't survive one; {self._remedy}, or start processes by 'spawn'"
        )

    def require(self) -> None:
        """Raise SkipDecError in a forked child."""
        if self.is_left:
            raise SkipDecError(self._owner, self.refusal)


def raise_descriptor_limit(wanted: int) -> int:
    """Raise the soft limit (``ulimit -n``) towards ``wanted``, up to the hard one; return it."""
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
    """Collect no reference cycles in the ``with`` block.

    Importing torch and tracing make a million objects that mostly stay, and searching them for
    cycles takes a quarter of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_PATIENCE = 10.0  # seconds that an exit waits for work in progress: a step, or loading
_LAST_SECONDS = 0.2  # for refused threads to end cleanly


class NativeWork:
    """Counts blocks of native work; `end` waits for those in progress and refuses others.

    >>> with NATIVE_WORK:
    ...     session.run(...)

    ``patience``: maximum seconds that `end` waits, so a call that hangs can't block the exit.
    """

    def __init__(self, patience: float = _PATIENCE) -> None:
        self._patience = patience
        self.reset()

    def reset(self) -> None:
        """Forget all work, as a forked child must: it lacks its parent's threads."""
        self._changed = Condition(Lock())
        self._running = 0
        self._exiting: int | None = None  # the thread in which the interpreter exits
        self._refused: set[Thread] = set()

    def __enter__(self) -> None:
        """Begin work. Raises ClosedError while the interpreter exits in another thread."""
        with self._changed:
            if self._exiting not in (None, get_ident()):
                self._refused.add(current_thread())
                self._changed.notify_all()
                raise ClosedError("Generator", "is closed: the interpreter exits")
            self._running += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._changed:
            self._running -= 1
            if self._exiting is not None:
                self._changed.notify_all()

    def end(self) -> None:
        """Refuse work of other threads, wait for work in progress, then for refused threads."""
        with self._changed:
            self._exiting, running = get_ident(), self._running
            self._changed.wait_for(lambda: self._running <= 0, self._patience)
            self._changed.wait_for(lambda: len(self._refused) >= running, _LAST_SECONDS)
            refused = list(self._refused)
        until = monotonic() + _LAST_SECONDS
        while any(thread.is_alive() for thread in refused) and monotonic() < until:
            sleep(0.001)


NATIVE_WORK = NativeWork()
atexit.register(NATIVE_WORK.end)
os.register_at_fork(after_in_child=NATIVE_WORK.reset)
