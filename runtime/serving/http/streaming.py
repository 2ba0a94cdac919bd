"""A completion as server-sent events: a chunk as soon as there is one, slow readers fewer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ....engines.errors import SkipDecError
from ...tokens.outputs import StreamDelta
from ..stream import RequestStream
from .choices import ShownSchedule, delta_choice
from .completions import Completion
from .errors import ApiError, api_error

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # else nginx keeps events back until it has 4 KiB
]


class EventStream(Response):
    """The answer to a request with ``stream``; a failure after the first byte is an event, too."""

    def __init__(self, completion: Completion) -> None:
        super().__init__()
        self._completion = completion

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events."""
        async with self._completion.cancelled_with(receive):
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            async for data in self._events():
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def _events(self) -> AsyncIterator[bytes]:
        completion = self._completion
        asked = completion.asked
        head = completion.head | ({"usage": None} if asked.includes_usage else {})
        try:
            async for choice in _choices(completion):
                yield _event(head | {"choices": [choice]})
            used = completion.finish([await stream.output() for stream in completion.streams])
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
    tokenizer = completion.model.engine.outline.tokenizer
    schedules = [ShownSchedule(stream.exit_schedule) for stream in completion.streams]
    lengths: dict[int, int] = {}  # characters sent so far, of a choice
    async for place, deltas in _merged(completion.streams):
        for one in dict.fromkeys(delta.index for delta in deltas):
            index = place * completion.asked.n + one
            prompt = "" if index in lengths else completion.echoed(place)
            choice = delta_choice(
                [delta for delta in deltas if delta.index == one],
                index,
                prompt,
                schedules[place],
                tokenizer,
                lengths.get(index, 0) + len(prompt),
            )
            lengths[index] = lengths.get(index, 0) + len(choice["text"])
            yield choice


async def _merged(
    streams: Sequence[RequestStream],
) -> AsyncIterator[tuple[int, Sequence[StreamDelta]]]:
    """What the streams have, each with its place, as it comes."""
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
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"
