"""The stream that a client reads: deltas as they come, several at once for a slow reader."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import time_ns
from types import TracebackType
from typing import cast

from ..requests.request import Request
from ..schedule.text import format_schedule
from ..scheduling.running_request import request_output
from ..tokens.outputs import CompletionOutput, RequestOutput, ScoreOutput, StreamDelta
from .open_request import OpenRequest, ServedRequest


@dataclass
class RequestTimes:
    """Nanoseconds since 1970, None where it has not happened (yet)."""

    arrival: int = field(default_factory=time_ns)
    admission: int | None = None  # its prompt runs from here on
    first_token: int | None = None
    end: int | None = None

    def phases(self) -> list[tuple[str, int, int]]:
        """Name, begin and end of each phase that began, of a request that has ended."""
        end = self.end or time_ns()
        marks = [self.arrival, self.admission, self.first_token]
        starts = [mark for mark in marks if mark is not None]
        names = ("queue", "prefill", "decode")
        return list(zip(names, starts, [*starts[1:], end], strict=False))


class RequestStream(OpenRequest):
    """The deltas of one request; an async iterator, and a context manager whose end cancels it.

    The engine never waits for a reader: what is unread stays here, at most max_tokens deltas a
    completion, and `read` takes all of it at once. Belongs to the event loop in which it was made.
    """

    def __init__(self, asked: ServedRequest) -> None:
        super().__init__(asked)
        self._request = cast(Request, asked.request)
        self.exit_schedule = asked.schedule
        self.schedule = format_schedule(asked.schedule)  # in full
        self.times = RequestTimes()
        self._changed = asyncio.Event()
        self._unread: deque[StreamDelta] = deque()
        self._pushed: list[StreamDelta] = []  # all of them, if there is a deadline
        self._output: RequestOutput | None = None
        self._error: Exception | None = None

    @property
    def prompt(self) -> str | None:
        """The prompt's text; None if it was given as token ids."""
        return self._request.prompt

    @property
    def outstanding_tokens(self) -> int:
        """An upper bound of the tokens still to run, with the prompt's while that waits."""
        request = self._request
        prompt = 0 if self.has_begun else len(request.prompt_token_ids)
        return prompt + request.params.n * request.max_tokens - self.tokens

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
            self.cancel_engine("cancelled")

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> StreamDelta:
        """The next delta. Raises what the engine failed with."""
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
        """The whole result, once all completions have ended; unread deltas are dropped."""
        while await self.read():
            pass
        assert self._output is not None
        return self._output

    def push(self, delta: StreamDelta) -> None:
        """Take what the engine's next step gave; nothing once it has ended."""
        if self._has_ended:
            return
        if self.asked.deadline is not None:
            self._pushed.append(delta)
        self.times.first_token = self.times.first_token or time_ns()
        self._unread.append(delta)
        self._changed.set()

    def begin(self) -> None:
        """Note when the request stopped waiting."""
        super().begin()
        self.times.admission = time_ns()

    def finish(
        self, output: RequestOutput | ScoreOutput | None, error: Exception | None = None
    ) -> None:
        """Take the result or the error; only the first end counts."""
        self.stop_timer()
        if self._has_ended:
            return
        self.times.end = time_ns()
        self._output, self._error = cast(RequestOutput | None, output), error
        self._changed.set()

    def give_up(self, reason: str) -> None:
        """End it as aborted, ``reason`` its stop_reason, whatever its engine does.

        Of a request with a deadline the result is what has come so far, else it is empty.
        """
        if self._has_ended:
            return
        last = _last_deltas(self._request, self._pushed, reason)
        output = _partial_output(self.asked, self._request, [*self._pushed, *last])
        self._unread.extend(last)
        self.finish(output)

    async def _wait(self) -> None:
        """Wait for a delta or the end."""
        while not self._unread and not self._has_ended:
            self._changed.clear()
            await self._changed.wait()
        if not self._unread and self._error is not None:
            raise self._error

    @property
    def _has_ended(self) -> bool:
        return self._output is not None or self._error is not None


def _last_deltas(request: Request, deltas: Sequence[StreamDelta], reason: str) -> list[StreamDelta]:
    """Return the ends, by ``reason``, of those completions that ``deltas`` don't end."""
    ended = {delta.index for delta in deltas if delta.finish_reason is not None}
    return [
        StreamDelta(0, index, (), "", "abort", 0, stop_reason=reason)
        for index in range(request.params.n)
        if index not in ended
    ]


def _partial_output(
    asked: ServedRequest, request: Request, deltas: Sequence[StreamDelta]
) -> RequestOutput:
    """Return the result that ``deltas`` make, which end each completion.

    Text that the engine held back, since a stop string might begin there, is missing.
    """
    outputs = tuple(
        _completion(index, [delta for delta in deltas if delta.index == index])
        for index in range(request.params.n)
    )
    return request_output(request, asked.schedule, outputs, request_id=asked.request_id)


def _completion(index: int, deltas: Sequence[StreamDelta]) -> CompletionOutput:
    token_ids = tuple(token for delta in deltas for token in delta.token_ids)
    logprobs = tuple(entry for delta in deltas for entry in delta.logprobs or ())
    chosen = zip(token_ids, logprobs, strict=False)
    return CompletionOutput(
        index=index,
        text="".join(delta.text for delta in deltas),
        token_ids=token_ids,
        cumulative_logprob=sum(entry[token].logprob for token, entry in chosen)
        if logprobs
        else None,
        logprobs=logprobs or None,
        finish_reason=deltas[-1].finish_reason,
        stop_reason=deltas[-1].stop_reason,
        layers_per_token=tuple(delta.layers for delta in deltas for _ in delta.token_ids),
    )
