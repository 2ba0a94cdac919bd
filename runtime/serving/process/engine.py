"""ProcessEngine: a bundle in a worker process, which is started again when it dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self, Unpack

from typing_extensions import override

from ....engines.errors import BundleError, ClosedError
from ...kv.plans import SlotMemory
from ...opening import OpenKeywords, OpenOptions
from ...requests.request import Request
from ...scheduling.stats import EngineStats
from ..inputs import InputProcessor
from ..pending import PendingRequests
from ..service import EngineService
from ..stream import PendingRequest
from .dispatcher import Dispatcher, Suspects
from .messages import Begun, Loaded, Message, Outbox, Refused, ScorePart, Stepped
from .settings import RestartPolicy, WorkerSettings
from .supervisor import WORKER, WorkerSupervisor


class ProcessEngine(EngineService):
    """`AsyncEngine`'s twin whose engines run in a process that may die, and share nobody's GIL.

    >>> async with ProcessEngine.open("opt-1.3b-int8", schedule="2x") as engine:
    ...     output = await engine.generate("The capital of France is", SamplingParams())

    If the worker dies, texts that ran end with WorkerDiedError; requests that waited wait for the
    next worker, once. A request that ran in two deaths is refused (UsageError) for as long as the
    `RestartPolicy` says. After too many deaths the engine has failed for good.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        inputs: InputProcessor,
        policy: RestartPolicy | None = None,
        *,
        worker_module: str = WORKER,
    ) -> None:
        """Start the worker; `loaded` is done once it takes requests. ``inputs``: its bundle's."""
        super().__init__(inputs, settings.max_waiting)
        self._settings = settings
        policy = policy or RestartPolicy()
        self._dispatcher = Dispatcher(self._requests, Suspects(policy.poison_timeout))
        self._stats: EngineStats | None = None  # of the worker that runs; None until the first
        self._ended_stats: list[EngineStats] = []  # the total of those that died, if any did
        self._memory: SlotMemory | None = None  # of the last worker that has loaded
        self.loaded: Future[None] = Future()
        self._supervisor = WorkerSupervisor(settings, policy, self, worker_module)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        path: str | Path,
        options: OpenOptions | None = None,
        *,
        policy: RestartPolicy | None = None,
        **changes: Unpack[OpenKeywords],
    ) -> AsyncIterator[Self]:
        """Load a bundle in a worker; leaving the block kills it. Options as `AsyncEngine.open`.

        ``threads`` is the size of the worker's one pool, None for all processors. ``policy``: how
        often the worker may die, and how long a request is refused that killed two. Raises what
        `Generator.open` does, whatever process it happened in, and WorkerDiedError.
        """
        opened = dict(OpenOptions.of(options, **changes))
        settings = WorkerSettings(path=Path(path), **opened)
        async with cls.opened(settings, policy) as engine:
            yield engine

    @classmethod
    @asynccontextmanager
    async def opened(
        cls,
        settings: WorkerSettings,
        policy: RestartPolicy | None = None,
        *,
        worker_module: str = WORKER,
    ) -> AsyncIterator[Self]:
        """`open` with what its options make."""
        inputs = await asyncio.to_thread(settings.inputs)
        engine = cls(settings, inputs, policy, worker_module=worker_module)
        try:
            await asyncio.wrap_future(engine.loaded)
            yield engine
        finally:
            await asyncio.to_thread(engine.close)

    @property
    @override
    def unready(self) -> str | None:
        if self.refusal is None and not self._dispatcher.is_up:
            return "is loading again, its worker died" if self.loaded.done() else "is loading"
        return self.refusal

    @property
    @override
    def seconds_in_step(self) -> float:
        return self._dispatcher.seconds_silent

    @property
    def worker_pid(self) -> int | None:
        """The worker's process id; None while there is none."""
        return self._supervisor.pid

    @property
    def requests(self) -> PendingRequests:
        """The requests that have not ended."""
        return self._requests

    @override
    def enter(self, pending: PendingRequest) -> None:
        """Queue a request, whose stream raises CapacityError if no worker has loaded yet.

        Before that the size of the KV memory is unknown here.
        """
        self.require_home()
        request = pending.asked.request
        if isinstance(request, Request):
            if self._memory is None:
                request.require_rows(self._settings.max_batch_size)
            else:
                request.require_possible(self._memory, pending.asked.schedule)
        self._dispatcher.require_sound(pending.asked)
        self._requests.admit(
            pending,
            cancel=self._dispatcher.cancel,
            send=self._dispatcher.send,
            retry_after=self.seconds_until_room,
        )

    @override
    async def abort(self, request_id: str) -> None:
        self.require_home()
        self._dispatcher.cancel(request_id, "cancelled")

    @override
    def stats(self) -> EngineStats:
        self.require_home()
        known = self._ended_stats + ([] if self._stats is None else [self._stats])
        if not known:
            raise ClosedError("ProcessEngine", "has no figures: its worker never loaded")
        return replace(EngineStats.total(known), waiting=self._requests.waiting)

    @override
    def close(self) -> None:
        if self._requests.home.is_left:
            return
        self._requests.refuse("is closed")
        self._inputs.close()
        self._supervisor.close()
        self._requests.end(self._requests.all(), ClosedError("ProcessEngine", "was closed"))

    # What follows is called in the supervisor's thread (WorkerClient).

    def on_loaded(self, loaded: Loaded, outbox: Outbox) -> None:
        """Raises BundleError for another bundle than that whose tokens requests are made of."""
        if loaded.digest != self._inputs.digest:
            raise BundleError(
                str(self._settings.path),
                "was replaced by another bundle since it was opened; start the server again",
            )
        self._stats, self._memory = loaded.stats, loaded.memory
        self._dispatcher.worker_is_up(outbox)
        if not self.loaded.done():
            self.loaded.set_result(None)

    def on_message(self, message: Message) -> None:
        """Pass on a message of the worker."""
        match message:
            case Stepped():
                self._stats = message.stats or self._stats
                self._dispatcher.step(message)
            case ScorePart():
                self._dispatcher.add_part(message)
            case Begun():
                self._dispatcher.begin(message)
            case Refused():
                self._dispatcher.refuse(message)

    def on_tick(self) -> None:
        """Keep the deadlines of what waits for a worker."""
        self._dispatcher.end_late()

    def on_death(self, reason: str) -> None:
        """Keep the dead worker's figures; requests are the dispatcher's."""
        lost = self._dispatcher.worker_died(reason)
        if self._stats is not None:
            self._ended_stats.append(self._stats.ended(lost))
            self._ended_stats = [EngineStats.total(self._ended_stats)]
            self._stats = None

    def on_failure(self, error: Exception) -> None:
        """Fail all open requests and `loaded`."""
        if not self.loaded.done():
            self.loaded.set_exception(error)
        self._requests.fail(str(error), error)
