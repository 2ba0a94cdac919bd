"""What a client of an AsyncEngine reads: deltas as they come, several at once where it is slow."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import time_ns
from types import TracebackType

from ..schedule.text import format_schedule
from ..tokens.outputs import RequestOutput, StreamDelta
from .engine_loop import EngineRequest
from .partial import last_deltas, partial_output
from .times import RequestTimes


class RequestStream:
    """The deltas of one request; an async iterator, and a context manager whose end cancels it.

    The engine never waits for a reader: what is unread stays here, at most max_tokens deltas a
    completion, and `read` takes all of it at once. Belongs to the event loop in which it was made.
    """

    def __init__(self, asked: EngineRequest, cancel: Callable[[], None]) -> None:
        self.request_id = asked.request_id
        self.exit_schedule = asked.schedule
        self.schedule = format_schedule(asked.schedule)  # in full
        self._asked = asked
        self.times = RequestTimes()
        self._cancel = cancel
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._unread: deque[StreamDelta] = deque()
        self._pushed: list[StreamDelta] = []  # all of them, where there is a deadline
        self._output: RequestOutput | None = None
        self._error: Exception | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop whose thread alone may call `push` and `finish`."""
        return self._loop

    async def __aenter__(self) -> RequestStream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()

    def cancel(self) -> None:
        """End the request, if it has not ended; what is unread can still be read."""
        if not self._has_ended:
            self._cancel()

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> StreamDelta:
        """The next delta. Raises what the engine failed with."""
        await self._wait()
        if not self._unread:
            raise StopAsyncIteration
        return self._unread.popleft()

    async def read(self) -> list[StreamDelta]:
        """All deltas that are there, once there is one; none when the request has ended."""
        await self._wait()
        deltas = list(self._unread)
        self._unread.clear()
        return deltas

    async def output(self) -> RequestOutput:
        """The whole result, once all completions have ended; unread deltas are dropped."""
        while await self.read():
            pass
        assert self._output is not None
        return self._output

    def push(self, delta: StreamDelta) -> None:
        """Take what the engine's next step gave; nothing once it has ended."""
        if self._has_ended:
            return
        if self._asked.deadline is not None:
            self._pushed.append(delta)
        self.times.first_token = self.times.first_token or time_ns()
        self._unread.append(delta)
        self._changed.set()

    def finish(self, output: RequestOutput | None, error: Exception | None = None) -> None:
        """There will be no more: the result, or what went wrong. Only the first end counts."""
        if self._has_ended:
            return
        self.times.end = time_ns()
        self._output, self._error = output, error
        self._changed.set()

    def give_up(self, reason: str) -> None:
        """End it as aborted, ``reason`` its stop_reason, whatever its engine does.

        Of a request with a deadline the result is what has come so far, else it is empty.
        """
        if self._has_ended:
            return
        last = last_deltas(self._asked, self._pushed, reason)
        output = partial_output(self._asked, [*self._pushed, *last])
        self._unread.extend(last)
        self.finish(output)

    async def _wait(self) -> None:
        """Until there is a delta or the end."""
        while not self._unread and not self._has_ended:
            self._changed.clear()
            await self._changed.wait()
        if not self._unread and self._error is not None:
            raise self._error

    @property
    def _has_ended(self) -> bool:
        return self._output is not None or self._error is not None
