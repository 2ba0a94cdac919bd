"""A request that has not ended: what its client asked for, and where the client waits."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic
from uuid import uuid4

from ..requests.request import Request, ScoreRequest
from ..schedule import ExitSchedule
from ..tokens.outputs import RequestOutput, ScoreOutput

_GRACE = 0.2  # seconds in which an engine may end a late request itself, with its last text


@dataclass(frozen=True)
class ServedRequest:
    """A checked request, to generate or to score, under the name that clients know."""

    request_id: str
    request: Request | ScoreRequest
    schedule: ExitSchedule
    deadline: float | None = None  # a time of time.monotonic, which a machine's processes share

    @classmethod
    def named(
        cls,
        request: Request | ScoreRequest,
        schedule: ExitSchedule,
        request_id: str | None,
        seconds: float | None,
    ) -> ServedRequest:
        """Name a request, by a new name if it has none, that may take ``seconds`` from now on."""
        deadline = None if seconds is None else monotonic() + seconds
        return cls(request_id or uuid4().hex, request, schedule, deadline)


class OpenRequest(ABC):
    """A request in flight. Belongs to the event loop in which it was made.

    The fields that say how far it has come belong to the engine that holds it.
    """

    def __init__(self, asked: ServedRequest) -> None:
        self.asked = asked
        self.request_id = asked.request_id
        self.loop = asyncio.get_running_loop()
        self.tokens = 0  # generated so far
        self.has_begun = False  # it no longer waits
        self.sends = 0  # how often it was sent to a worker
        self.end_reason: str | None = None  # why it was cancelled
        self.is_answered = False  # its client has its end, though an engine may still hold it
        self._cancel_engine: Callable[[str], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    @abstractmethod
    def outstanding_tokens(self) -> int:
        """An upper bound of the tokens still to run, with the prompt's while that waits."""

    @abstractmethod
    def finish(
        self, output: RequestOutput | ScoreOutput | None, error: Exception | None = None
    ) -> None:
        """Hand over the result or the error, in the thread of `loop`."""

    @abstractmethod
    def give_up(self, reason: str) -> None:
        """End it with the tokens that have come so far, in the thread of `loop`."""

    def begin(self) -> None:
        """Note that it no longer waits."""
        self.has_begun = True

    def enter(self, cancel_engine: Callable[[str], None], give_up: Callable[[], None]) -> None:
        """Start its deadline: ``cancel_engine`` is called then, ``give_up`` a moment later.

        A working engine ends the request between two steps; one that hangs is not waited for.
        """
        self._cancel_engine = cancel_engine
        if self.asked.deadline is not None:
            seconds = max(0.0, self.asked.deadline - monotonic())
            self._timer = self.loop.call_later(seconds, partial(self._end_late, give_up))

    def cancel_engine(self, reason: str) -> None:
        """Ask the engine that holds the request to end it."""
        if self._cancel_engine is not None:
            self._cancel_engine(reason)

    def stop_timer(self) -> None:
        """Forget the deadline."""
        if self._timer is not None:
            self._timer.cancel()

    def _end_late(self, give_up: Callable[[], None]) -> None:
        self._timer = self.loop.call_later(_GRACE, give_up)
        self.cancel_engine("deadline")
