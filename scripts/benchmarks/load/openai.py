"""A client of OpenAI's completions protocol: HTTP/1.1 over a socket, server-sent events.

Written by hand because clients share the machine with the measured server, and httpx takes ten
times as long per event. Each request has its own connection.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from benchmarks.load.client import RequestFailed
from benchmarks.load.requests import LoadRequest
from skipdec.engines.errors import UsageError

_MAX_LINE = 1 << 22  # bytes per event


class OpenAIClient:
    """Client of the server at ``address``, ``http://HOST:PORT``; every request sends ``key``."""

    def __init__(self, address: str, *, model: str | None = None, key: str | None = None) -> None:
        parts = urlsplit(address)
        if parts.scheme != "http" or not parts.hostname:
            raise UsageError("TARGET", f"is {address!r}; allowed: http://HOST:PORT")
        self._host, self._port = parts.hostname, parts.port or 80
        self._path = parts.path.rstrip("/") + "/v1/completions"
        self._model = model
        self._key = key

    @asynccontextmanager
    async def stream(self, request: LoadRequest) -> AsyncIterator[AsyncIterator[int]]:
        """Send a request; leaving the block closes the connection."""
        try:
            reader, writer = await asyncio.open_connection(self._host, self._port, limit=_MAX_LINE)
        except OSError as error:
            raise RequestFailed(f"no connection ({error.strerror})") from error
        try:
            writer.write(self._request(request))
            yield self._events(reader)
        finally:
            writer.close()

    def _request(self, request: LoadRequest) -> bytes:
        fields: dict[str, Any] = {
            "model": self._model,
            "prompt": request.prompt,
            "max_tokens": request.max_tokens,
            "stream": True,
            **request.sampling,
        }
        if request.schedule is not None:
            fields["schedule"] = request.schedule
        body = json.dumps({name: value for name, value in fields.items() if value is not None})
        head = [
            f"POST {self._path} HTTP/1.1",
            f"Host: {self._host}:{self._port}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Connection: close",
            *([f"Authorization: Bearer {self._key}"] if self._key else []),
        ]
        return "\r\n".join([*head, "", body]).encode()

    async def _events(self, reader: asyncio.StreamReader) -> AsyncIterator[int]:
        try:
            async for tokens in _read_events(reader):
                yield tokens
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            raise RequestFailed("the connection broke") from error


async def _read_events(reader: asyncio.StreamReader) -> AsyncIterator[int]:
    """Yield the number of tokens of each event; 1 if the server does not report it."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if (status := int(head.split(maxsplit=2)[1])) != 200:
        raise RequestFailed(f"status {status}")
    is_chunked = b"\r\ntransfer-encoding: chunked\r\n" in head
    async for data in _data(_chunks(reader) if is_chunked else reader):
        if data == b"[DONE]":
            return
        document = json.loads(data)
        if "error" in document:
            raise RequestFailed(f"error {document['error'].get('code')}")
        for choice in document["choices"]:
            if choice["finish_reason"] in ("abort", "error"):
                raise RequestFailed(f"finish_reason {choice['finish_reason']}")
            yield len(choice.get("layers_per_token", "1"))
    raise RequestFailed("the connection broke")


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield a body in HTTP's chunked coding."""
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        yield (await reader.readexactly(size + 2))[:-2]


async def _data(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the text after ``data:`` of each event, however the body was split."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[len(b"data:") :].strip()
