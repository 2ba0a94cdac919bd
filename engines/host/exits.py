"""Interpreter exit in the presence of native work in daemon threads.

At exit, Python ends a daemon thread when it next takes the GIL. Inside the bindings of ONNX
Runtime or TensorRT this unwinds C++ frames that don't allow it, and the process aborts.
"""

from __future__ import annotations

import atexit
import os
from threading import Condition, Lock, Thread, current_thread, get_ident
from time import monotonic, sleep
from types import TracebackType

from ..errors import ClosedError

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
        """Refuse work of other threads, wait for work in progress, then briefly for its threads.

        The last wait lets a refused thread print its traceback.
        """
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
