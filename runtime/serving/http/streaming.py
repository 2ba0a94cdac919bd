"""A completion as server-sent events: a chunk as soon as there is one, slow readers fewer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ....engines.errors import SkipDecError
from ...tokens.outputs import StreamDelta
from ..stream import RequestStream
from .completions import Completion
from .protocol.choices import ShownSchedule, TokenNames, delta_choice
from .protocol.errors import ApiError, api_error
from .protocol.pieces import Items, Turns, encoded

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # else nginx keeps events back until it has 4 KiB
]

_CHUNK = 32  # most deltas of a completion in one event


class EventStream(Response):
    """The answer to a request with ``stream``; a failure after the first byte is an event, too."""

    def __init__(self, completion: Completion) -> None:
        super().__init__()
        self._completion = completion

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events."""
        async with self._completion.cancelled_with(receive):
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            turns = Turns()
            async for data in self._events():
                await send({"type": "http.response.body", "body": data, "more_body": True})
                await turns.take()
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def _events(self) -> AsyncIterator[bytes]:
        completion = self._completion
        asked = completion.asked
        head = completion.head | ({"usage": None} if asked.includes_usage else {})
        try:
            async for choice in _choices(completion):
                yield _event(head | {"choices": Items([choice])})
            outputs = [await stream.output() for stream in completion.streams]
            used = await completion.finish(outputs)
            if asked.includes_usage:
                yield _event(head | {"choices": [], "usage": used})
        except ApiError as error:
            completion.record.error = error.code
            yield _event(error.document())
        except SkipDecError as error:
            answer = api_error(error)
            completion.record.error = answer.code
            yield _event(answer.document())


async def _choices(completion: Completion) -> AsyncIterator[dict[str, object]]:
    """A choice for each completion that has got something, as often as one has."""
    names = TokenNames(completion.model.engine.outline.tokenizer)
    schedules = [
        ShownSchedule(stream.exit_schedule, stream.schedule) for stream in completion.streams
    ]
    lengths: dict[int, int] = {}  # characters sent so far, of a choice
    async for place, deltas in _merged(completion.streams):
        for chunk in _chunks(deltas):
            index = place * completion.asked.n + chunk[0].index
            prompt = "" if index in lengths else completion.echoed(place)
            offset = lengths.get(index, 0) + len(prompt)
            choice = delta_choice(chunk, index, prompt, schedules[place], names, offset)
            lengths[index] = lengths.get(index, 0) + len(choice["text"])
            yield choice


def _chunks(deltas: Sequence[StreamDelta]) -> Iterator[list[StreamDelta]]:
    """Sort deltas by completion; of what a slow reader has left unread, a part at a time."""
    by_index: dict[int, list[StreamDelta]] = {}
    for delta in deltas:
        by_index.setdefault(delta.index, []).append(delta)
    for mine in by_index.values():
        for start in range(0, len(mine), _CHUNK):
            yield mine[start : start + _CHUNK]


async def _merged(
    streams: Sequence[RequestStream],
) -> AsyncIterator[tuple[int, Sequence[StreamDelta]]]:
    """Yield the streams' deltas as they come, each with the place of its stream."""
    tasks = {asyncio.create_task(stream.read()): place for place, stream in enumerate(streams)}
    try:
        while tasks:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=tasks.__getitem__):
                place = tasks.pop(task)
                if deltas := task.result():
                    yield place, deltas
                    tasks[asyncio.create_task(streams[place].read())] = place
    finally:
        for task in tasks:
            task.cancel()


def _event(document: object) -> bytes:
    # Some clients take other characters than line feeds for the end of a line.
    return b"".join((b"data: ", *encoded(document, ascii_only=True), b"\n\n"))
