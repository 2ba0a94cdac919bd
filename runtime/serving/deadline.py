"""DeadlineTimer: a request's deadline by the clock of the process in which its client waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

_GRACE = 0.2  # seconds in which an engine may end a late request itself, with its last text


class DeadlineTimer:
    """Calls ``tell`` at the deadline and ``give_up`` a moment later, unless it is stopped.

    An engine that is told ends the request between two steps; one that hangs or is in a long step
    is not waited for. Everything happens in the thread of ``loop``. ``deadline`` is a time of
    time.monotonic.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        deadline: float,
        tell: Callable[[], None],
        give_up: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._tell = tell
        self._give_up = give_up
        self._handle = loop.call_later(max(0.0, deadline - monotonic()), self._be_late)

    def stop(self) -> None:
        """Call nothing any more."""
        self._handle.cancel()

    def _be_late(self) -> None:
        self._handle = self._loop.call_later(_GRACE, self._give_up)
        self._tell()
