"""A client that goes while its answer is made: what it asked for is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Protocol

from starlette.types import Receive

from ..watch.record import RequestRecord


class Cancellable(Protocol):
    """A stream of a text, or a task."""

    def cancel(self) -> object:
        """End it, if it has not ended."""


@asynccontextmanager
async def cancelled_with(
    receive: Receive, record: RequestRecord, running: Iterable[Cancellable]
) -> AsyncIterator[None]:
    """Within the block a client that goes ends all that is ``running``; so does leaving it."""

    def cancel() -> None:
        for one in running:
            one.cancel()

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        record.gone = True
        cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        cancel()
