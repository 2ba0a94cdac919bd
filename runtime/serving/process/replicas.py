"""Replicas: several workers of one bundle behind one queue's limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Self

from typing_extensions import override

from ....engines.errors import OverloadedError, UsageError
from ....engines.host.process import HomeProcess
from ...scheduling.stats import EngineStats
from ..open_request import OpenRequest
from ..outline import BundleOutline
from ..service import EngineService, seconds_until_room
from .engine import ProcessEngine
from .restarts import RestartPolicy
from .settings import WorkerSettings


class Replicas(EngineService):
    """Workers that run the same bundle; a request goes to the one with the least left to do.

    That is: the fewest tokens that its open requests may still need, among those that are ready. A
    request stays where it is. If one of them fails for good, all have.
    """

    def __init__(self, engines: Sequence[ProcessEngine], max_waiting: int) -> None:
        """``max_waiting``: of all together. The engines stay their owner's to close."""
        self._engines = engines
        self._max_waiting = max_waiting
        self._home = HomeProcess("Replicas", "open them here")
        self._failure: Future[str] = Future()
        for engine in engines:
            engine.failure.add_done_callback(self._fail)

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, settings: Sequence[WorkerSettings], policy: RestartPolicy | None = None
    ) -> AsyncIterator[Self]:
        """Load one worker after the other, each with its ``settings`` of one bundle."""
        async with AsyncExitStack() as stack:
            engines = [
                await stack.enter_async_context(ProcessEngine.opened(one, policy))
                for one in settings
            ]
            yield cls(engines, settings[0].max_waiting)

    @property
    @override
    def outline(self) -> BundleOutline:
        return self._engines[0].outline

    @property
    @override
    def refusal(self) -> str | None:
        return next((engine.refusal for engine in self._engines if engine.refusal), None)

    @property
    def unready(self) -> str | None:
        """See EngineService; while one of them is ready, requests go there."""
        reasons = [engine.unready for engine in self._engines]
        return self.refusal or (None if None in reasons else reasons[0])

    @property
    @override
    def failure(self) -> Future[str]:
        return self._failure

    @property
    def seconds_in_step(self) -> float:
        """The longest of all."""
        return max(engine.seconds_in_step for engine in self._engines)

    @override
    def enter(self, opened: OpenRequest) -> None:
        self._least_busy(opened.request_id).enter(opened)

    @override
    def require_home(self) -> None:
        self._home.require()

    @override
    async def abort(self, request_id: str) -> None:
        for engine in self._engines:
            await engine.abort(request_id)

    def stats(self) -> EngineStats:
        """The sum of all."""
        return EngineStats.total([engine.stats() for engine in self._engines])

    @override
    async def drain(self, timeout: float | None = None) -> bool:
        self._home.require()
        return all(await asyncio.gather(*(engine.drain(timeout) for engine in self._engines)))

    @override
    def end_all(self, error: Exception) -> None:
        for engine in self._engines:
            engine.end_all(error)

    @override
    def close(self) -> None:
        for engine in self._engines:
            engine.close()

    def _least_busy(self, request_id: str) -> ProcessEngine:
        """Return the engine for a request. Raises UsageError for a name in use, OverloadedError."""
        self._home.require()
        if any(engine.has(request_id) for engine in self._engines):
            raise UsageError(
                "request_id", f"{request_id!r} is in use; leave it out, or choose another"
            )
        waiting = sum(engine.waiting for engine in self._engines)
        if waiting >= self._max_waiting:
            raise OverloadedError(
                "Replicas",
                f"{waiting} requests wait, as many as max_waiting allows; try again later",
                retry_after=seconds_until_room(self.stats()) / len(self._engines),
            )
        ready = [engine for engine in self._engines if engine.unready is None] or self._engines
        return min(ready, key=lambda one: one.outstanding_tokens)

    def _fail(self, failure: Future[str]) -> None:
        if not self._failure.done():
            self._failure.set_result(failure.result())


def open_workers(
    settings: Sequence[WorkerSettings],
    policy: RestartPolicy | None = None,
) -> AbstractAsyncContextManager[EngineService]:
    """Load one bundle in one worker or several; each with its ``settings``."""
    if len(settings) == 1:
        return ProcessEngine.opened(settings[0], policy)
    return Replicas.opened(settings, policy)
