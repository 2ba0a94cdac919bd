"""Requests in flight, on which clients await results."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from time import monotonic, time_ns
from typing import Self, cast

from typing_extensions import override

from ...engines.errors import UsageError
from ..requests.request import Request
from ..scheduling.running_request import request_output
from ..tokens.outputs import CompletionOutput, RequestOutput, ScoreOutput, StreamDelta, joined
from .messages import Entries, ServedRequest, given_up

_GRACE = 0.2  # seconds for an engine to end a late request itself, including its last text


class PendingRequest(ABC):
    """A request in flight. It belongs to the event loop in which it was made.

    The fields of its progress belong to the engine that holds it. Raises UsageError outside an
    event loop.
    """

    def __init__(self, served: ServedRequest) -> None:
        self.served = served
        self.request_id = served.request_id
        try:
            self.loop = asyncio.get_running_loop()
        except RuntimeError:
            problem = "is made outside a running event loop; call this in a coroutine"
            raise UsageError("request", problem) from None
        self.has_begun = False  # True once it no longer waits
        self.sends = 0  # the number of times that it was sent to a worker
        self.end_reason: str | None = None  # why it was cancelled
        self.is_answered = False  # its client has the result, though an engine may still hold it
        self._cancel_engine: Callable[[str], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @abstractmethod
    def finish(
        self, output: RequestOutput | ScoreOutput | None, error: Exception | None = None
    ) -> None:
        """Hand over the result or the error, in the thread of `loop`."""

    @abstractmethod
    def give_up(self, reason: str) -> None:
        """End the request with its tokens so far, in the thread of `loop`."""

    def begin(self) -> None:
        """Record that the request no longer waits."""
        self.has_begun = True

    def enter(self, cancel_engine: Callable[[str], None], give_up: Callable[[], None]) -> None:
        """Start the timer: at the deadline ``cancel_engine`` is called, a moment later ``give_up``.

        A working engine ends the request between two steps; one that hangs is not waited for.
        """
        self._cancel_engine = cancel_engine
        if self.served.deadline is not None:
            seconds = max(0.0, self.served.deadline - monotonic())
            self._timer = self.loop.call_later(seconds, partial(self._end_late, give_up))

    def cancel_engine(self, reason: str) -> None:
        """Ask the engine that holds the request to end it."""
        if self._cancel_engine is not None:
            self._cancel_engine(reason)

    def stop_timer(self) -> None:
        """Cancel the timer of the deadline."""
        if self._timer is not None:
            self._timer.cancel()

    def _end_late(self, give_up: Callable[[], None]) -> None:
        self._timer = self.loop.call_later(_GRACE, give_up)
        self.cancel_engine("deadline")


@dataclass
class RequestTimes:
    """Nanoseconds since 1970; None for what has not happened (yet)."""

    arrival: int = field(default_factory=time_ns)
    admission: int | None = None  # when its prompt began to run
    first_token: int | None = None
    end: int | None = None

    def phases(self) -> list[tuple[str, int, int]]:
        """Return name, begin and end of each phase that began; the request must have ended."""
        marks = [self.arrival, self.admission, self.first_token]
        starts = [mark for mark in marks if mark is not None]
        ends = [*starts[1:], self.end or time_ns()]
        return list(zip(("queue", "prefill", "decode"), starts, ends, strict=False))


class RequestStream(PendingRequest):
    """The deltas of one request; an async iterator, and a context manager whose end cancels it.

    The engine never waits for a reader: unread deltas stay here, at most max_tokens per completion,
    and `read` takes all of them at once. It belongs to the event loop in which it was made.
    """

    def __init__(self, served: ServedRequest, num_layers: int) -> None:
        super().__init__(served)
        self._request = cast(Request, served.request)
        self.schedule = served.schedule  # its text in full
        self.exit_schedule = served.exit_schedule(num_layers)
        self.times = RequestTimes()
        self._changed = asyncio.Event()
        self._unread: deque[StreamDelta] = deque()
        # By completion, if there is a deadline or the result needs their log-probabilities.
        self._pushed: list[list[StreamDelta]] = [[] for _ in range(self._request.params.n)]
        self._keeps = served.deadline is not None or self._request.params.logprobs is not None
        self._output: RequestOutput | None = None
        self._error: Exception | None = None

    @property
    def prompt(self) -> str | None:
        """The prompt's text; None if it was given as token ids."""
        return self._request.prompt

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.cancel()

    def cancel(self) -> None:
        """End the request, if it has not ended; unread deltas can still be read."""
        if not self._has_ended:
            self.cancel_engine("cancelled")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamDelta:
        """Return the next delta. Raises the engine's error."""
        await self._wait()
        if not self._unread:
            raise StopAsyncIteration
        return self._unread.popleft()

    async def read(self) -> list[StreamDelta]:
        """Wait for a delta and return all unread ones; the list is empty at the end."""
        await self._wait()
        deltas = list(self._unread)
        self._unread.clear()
        return deltas

    async def output(self) -> RequestOutput:
        """Return the whole result, once all completions have ended; unread deltas are dropped."""
        while await self.read():
            pass
        assert self._output is not None
        return self._output

    def push(self, delta: StreamDelta) -> None:
        """Take the next delta of the engine; ignored once the request has ended."""
        if self._has_ended:
            return
        if self._keeps:
            self._pushed[delta.index].append(delta)
        if delta.token_ids:
            self.times.first_token = self.times.first_token or time_ns()
        self._unread.append(delta)
        self._changed.set()

    @override
    def begin(self) -> None:
        super().begin()
        self.times.admission = time_ns()

    @override
    def finish(
        self, output: RequestOutput | ScoreOutput | None, error: Exception | None = None
    ) -> None:
        self.stop_timer()
        if self._has_ended:  # only the first end counts
            return
        self.times.end = time_ns()
        if isinstance(output, RequestOutput):
            outputs = tuple(map(self._with_logprobs, output.outputs))
            self._output = replace(output, prompt=self.prompt, outputs=outputs)
        self._error = error
        self._changed.set()

    @override
    def give_up(self, reason: str) -> None:
        """End it as aborted, with ``reason`` as its stop_reason, without waiting for the engine.

        With a deadline, the result has the tokens so far, else it is empty. Text that the engine
        has held back, because a stop string might begin there, is missing.
        """
        if self._has_ended:
            return
        for index, deltas in enumerate(self._pushed):
            if not deltas or deltas[-1].finish_reason is None:
                last = StreamDelta(0, index, (), "", "abort", 0, stop_reason=reason)
                deltas.append(last)
                self._unread.append(last)
        outputs = tuple(map(joined, self._pushed))
        self.finish(
            request_output(self._request, self.exit_schedule, outputs, request_id=self.request_id)
        )

    def _with_logprobs(self, one: CompletionOutput) -> CompletionOutput:
        """Return a completion with its deltas' log-probabilities; workers send them only there."""
        if one.logprobs is None:
            return one
        entries = (delta.logprobs or () for delta in self._pushed[one.index])
        return replace(one, logprobs=tuple(chain.from_iterable(entries)))

    async def _wait(self) -> None:
        """Wait for a delta or the end.

        Raises UsageError in another event loop, which the engine could not wake.
        """
        if asyncio.get_running_loop() is not self.loop:
            raise UsageError("stream", "belongs to the event loop that submitted it; read it there")
        while not self._unread and not self._has_ended:
            self._changed.clear()
            await self._changed.wait()
        if not self._unread and self._error is not None:
            raise self._error

    @property
    def _has_ended(self) -> bool:
        return self._output is not None or self._error is not None


class ScoreFuture(PendingRequest):
    """The scores of one text, awaited in the event loop in which this was made."""

    def __init__(self, served: ServedRequest) -> None:
        super().__init__(served)
        self._result: asyncio.Future[ScoreOutput] = self.loop.create_future()
        self._entries: Entries = ()

    def add(self, entries: Entries) -> None:
        """Take the alternatives of the next tokens, because their scores arrive without them."""
        self._entries += entries

    async def output(self) -> ScoreOutput:
        """Wait for the scores. Cancelling the wait cancels the request."""
        try:
            return await self._result
        except asyncio.CancelledError:
            self.cancel_engine("cancelled")
            raise

    @override
    def finish(
        self, output: RequestOutput | ScoreOutput | None, error: Exception | None = None
    ) -> None:
        self.stop_timer()
        if self._result.done():  # the client has cancelled it
            return
        if isinstance(output, ScoreOutput):
            output = replace(output, top_logprobs=self._entries) if self._entries else output
            self._result.set_result(output)
        elif error is not None:
            self._result.set_exception(error)

    @override
    def give_up(self, reason: str) -> None:
        self.finish(None, given_up(reason))
