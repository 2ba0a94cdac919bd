"""ProcessEngine: a bundle in a worker process, which is restarted when it dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self, Unpack

from typing_extensions import override

from ....engines.checking import as_path
from ....engines.errors import ClosedError
from ...opening import OpenKeywords, OpenOptions
from ...requests.request import Request
from ...scheduling.stats import EngineStats
from ..inputs import InputProcessor
from ..messages import ServedRequest
from ..queue import Suspects
from ..service import EngineService
from .settings import RestartPolicy, WorkerSettings
from .supervisor import WorkerSupervisor


class ProcessEngine(EngineService):
    """Like `AsyncEngine`, but its engines run in a process that may die and has its own GIL.

    >>> async with ProcessEngine.open("opt-1.3b-int8", schedule="2x") as engine:
    ...     output = await engine.generate("The capital of France is", SamplingParams())

    If the worker dies, running texts end with WorkerDiedError; waiting requests go to the next
    worker, once. A request that was running when two workers died is refused (UsageError) for as
    long as the `RestartPolicy` says. After too many deaths the engine has failed for good.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        inputs: InputProcessor,
        policy: RestartPolicy | None = None,
    ) -> None:
        """Start the worker; ``inputs`` are its bundle's.

        `loaded` is done once it accepts requests, and has the exception if that fails.
        """
        policy = policy or RestartPolicy()
        super().__init__(inputs, settings.max_waiting, Suspects(policy.poison_timeout))
        self._settings = settings
        self._supervisor = WorkerSupervisor(settings, policy, self.requests, inputs.digest)
        self.loaded = self._supervisor.loaded

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
        """Load a bundle in a worker; leaving the block kills it. Options as in `AsyncEngine.open`.

        ``threads`` is the size of the worker's only pool; None means all processors. ``policy``
        says how often the worker may die, and how long a request that killed two is refused. Raises
        what `Generator.open` raises, even in the worker, and WorkerDiedError.
        """
        opened = dict(OpenOptions.of(options, **changes))
        settings = WorkerSettings(path=as_path(path), **opened)
        async with cls.opened(settings, policy) as engine:
            yield engine

    @classmethod
    @asynccontextmanager
    async def opened(
        cls,
        settings: WorkerSettings,
        policy: RestartPolicy | None = None,
        *,
        inputs: InputProcessor | None = None,
    ) -> AsyncIterator[Self]:
        """As `open`, with ``settings``; ``inputs`` are the bundle's if they were read before."""
        if inputs is None:
            inputs = await asyncio.to_thread(settings.inputs)
        engine = cls(settings, inputs, policy)
        try:
            await asyncio.wrap_future(engine.loaded)
            yield engine
        finally:
            await asyncio.to_thread(engine.close)

    @property
    @override
    def unready(self) -> str | None:
        if self.refusal is None and not self.requests.is_connected:
            return "is loading again, its worker died" if self.loaded.done() else "is loading"
        return self.refusal

    @property
    def worker_pid(self) -> int | None:
        """The worker's process id; None while there is no worker."""
        return self._supervisor.pid

    @override
    def require_possible(self, served: ServedRequest) -> None:
        # Until a worker has loaded, the size of the KV memory is unknown; the worker then refuses.
        request, memory = served.request, self._supervisor.memory
        if not isinstance(request, Request):
            return
        if memory is None:
            request.require_rows(self._settings.max_batch_size)
        else:
            request.require_possible(memory, served.exit_schedule(self.inputs.model.num_layers))

    @override
    def stats(self) -> EngineStats:
        self.require_home()
        return replace(self._supervisor.stats(), waiting=self.requests.waiting)

    @override
    def close(self) -> None:
        if self.requests.home.is_left:
            return
        self.requests.refuse("is closed")
        self.inputs.close()
        self._supervisor.close()
        self.requests.end_all(ClosedError("ProcessEngine", "was closed"))
