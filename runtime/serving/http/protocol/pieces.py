"""Long answers: made, encoded and sent a piece at a time, so that none holds up the event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

from starlette.responses import Response, StreamingResponse

Item = TypeVar("Item")

_TO_ASCII = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
_TO_UTF8 = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

_SLICE_SECONDS = 0.001  # of work between two looks at what else the loop has to do
_WHOLE_BYTES = 1 << 16  # an answer of up to so many is sent at once, with its length


class Turns:
    """Lets an event loop do other work while long work is done in it."""

    def __init__(self) -> None:
        self._begin = perf_counter()

    async def take(self) -> None:
        """Let others have their turn, if this one has lasted long enough."""
        if perf_counter() - self._begin > _SLICE_SECONDS:
            await asyncio.sleep(0)
            self._begin = perf_counter()


@dataclass(frozen=True)
class Blocks:
    """A long array of a document, as short lists that are made while it is encoded; read once."""

    blocks: Iterable[Sequence[Any]]


@dataclass(frozen=True)
class Items:
    """An array whose items are documents that are made while it is encoded; read once."""

    items: Iterable[Any]


def consumed(items: list[Item]) -> Iterator[Item]:
    """Yield the items and empty the list: freeing a hundred thousand objects at once takes long."""
    items.reverse()
    while items:
        yield items.pop()


def encoded(document: Any, *, ascii_only: bool = False) -> Iterator[bytes]:  # noqa: ANN401
    """Yield the JSON of a document in pieces, each of which takes little time to make.

    A document has what JSON has (keys may be numbers, which become texts), Blocks, and Items.
    """
    encode = _TO_ASCII if ascii_only else _TO_UTF8
    match document:
        case dict():
            yield b"{"
            for place, (name, value) in enumerate(document.items()):
                yield f"{',' if place else ''}{encode(str(name))}:".encode()
                yield from encoded(value, ascii_only=ascii_only)
            yield b"}"
        case Items(items):
            yield b"["
            for place, item in enumerate(items):
                if place:
                    yield b","
                yield from encoded(item, ascii_only=ascii_only)
            yield b"]"
        case Blocks(blocks):
            yield b"["
            for place, block in enumerate(filter(None, blocks)):
                yield f"{',' if place else ''}{encode(block)[1:-1]}".encode()
            yield b"]"
        case _:
            yield encode(document).encode()


async def json_answer(document: dict[str, Any]) -> Response:
    """Answer with a document: a short one at once, a long one as it is made."""
    chunks = _chunks(document)
    first = await anext(chunks)
    second = await anext(chunks, None)
    if second is None:
        return Response(first, media_type="application/json")
    return StreamingResponse(_chained(first, second, rest=chunks), media_type="application/json")


async def _chunks(document: dict[str, Any]) -> AsyncIterator[bytes]:
    turns, chunk = Turns(), bytearray()
    for piece in encoded(document):
        chunk += piece
        if len(chunk) > _WHOLE_BYTES:
            yield bytes(chunk)
            chunk.clear()
        await turns.take()
    if chunk:
        yield bytes(chunk)


async def _chained(*begin: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    for chunk in begin:
        yield chunk
    async for chunk in rest:
        yield chunk
