"""A client of an AsyncEngine in this process, like a service without a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.load.client import RequestFailed
from benchmarks.load.requests import LoadRequest
from skipdec import AsyncEngine, SamplingParams, StreamDelta
from skipdec.engines.errors import SkipDecError
from skipdec.runtime.serving.stream import RequestStream


class EngineClient:
    """Sends requests to ``engine``, which its owner closes."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    @asynccontextmanager
    async def stream(self, request: LoadRequest) -> AsyncIterator[AsyncIterator[int]]:
        """Submit a request to the engine; leaving the block cancels it."""
        params = SamplingParams(max_tokens=request.max_tokens, **request.sampling)
        prompt = request.prompt if isinstance(request.prompt, str) else list(request.prompt)
        try:
            stream = self._engine.submit(prompt, params, schedule=request.schedule)
        except SkipDecError as error:
            raise RequestFailed(type(error).__name__) from error
        async with stream:
            yield _events(stream)


async def _events(stream: RequestStream) -> AsyncIterator[int]:
    while deltas := await _read(stream):
        if deltas[-1].finish_reason in ("abort", "error"):
            raise RequestFailed(f"finish_reason {deltas[-1].finish_reason}")
        yield sum(len(delta.token_ids) for delta in deltas)


async def _read(stream: RequestStream) -> list[StreamDelta]:
    try:
        return await stream.read()
    except SkipDecError as error:
        raise RequestFailed(type(error).__name__) from error
