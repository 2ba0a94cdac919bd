"""AsyncEngine: one engine thread for any number of asyncio clients."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self, Unpack

from typing_extensions import override

from ...engines.errors import ClosedError
from ..generator import Generator
from ..opening import OpenKeywords, OpenOptions
from ..scheduling.stats import EngineStats
from .engine_loop import EngineLoop
from .inputs import InputProcessor
from .messages import ServedRequest
from .service import EngineService

_LOGGER = logging.getLogger(__name__)


class AsyncEngine(EngineService):
    """A bundle that many asyncio clients generate with at once; see `RunningBatch`.

    >>> async with AsyncEngine.open("opt-1.3b-int8", schedule="2x") as engine:
    ...     async with engine.submit("The capital of France is", SamplingParams()) as stream:
    ...         async for delta in stream:  # leaving the block cancels
    ...             print(delta.text, end="")
    ...     output = await engine.generate("The capital of Spain is", SamplingParams())

    One thread owns the engines; `submit` may be called from any thread that runs an event loop.
    ``generator`` has model, tokenizer and bundle; it is busy while this engine is open.
    """

    def __init__(self, generator: Generator, options: OpenOptions) -> None:
        """Take over ``generator``, which is closed with the engine, or if this fails.

        ``options`` and errors are as in `open`.
        """
        with ExitStack() as held:
            held.callback(generator.close)
            super().__init__(InputProcessor.of_generator(generator, options), options.max_waiting)
            self.generator = generator
            self._batch = held.enter_context(generator.running_batch(options))
            self._loop = EngineLoop(self._batch, self.requests.take)
            self._held = held.pop_all()
        self.requests.connect(self._loop.send)
        self._thread = threading.Thread(target=self._run, name="skipdec engine", daemon=True)
        self._thread.start()

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        path: str | Path,
        options: OpenOptions | None = None,
        **changes: Unpack[OpenKeywords],
    ) -> AsyncIterator[Self]:
        """Open a bundle directory; leaving the block cancels all requests and frees everything.

        Options and errors are those of `Generator.open`.
        """
        options = OpenOptions.of(options, **changes)
        generator = await asyncio.to_thread(open_warm, path, options)
        engine = cls(generator, options)
        try:
            yield engine
        finally:
            await asyncio.to_thread(engine.close)

    @override
    def require_possible(self, served: ServedRequest) -> None:
        self._loop.require_possible(served)

    @override
    def stats(self) -> EngineStats:
        # A request that has not reached the engine yet counts as waiting.
        self.require_home()
        return replace(self._batch.stats(), waiting=self.requests.waiting)

    @override
    def close(self) -> None:
        if self.requests.home.is_left:
            return
        self.requests.refuse("is closed")
        self._loop.stop()
        self._thread.join()
        self._held.close()

    def _run(self) -> None:
        """The engine's thread."""
        try:
            self._loop.run()
        except Exception as error:
            if not isinstance(error, ClosedError):  # raised if the generator or interpreter closes
                _LOGGER.exception("the engine's thread has failed")
            self.requests.fail(str(error), error)
        else:
            self.requests.end_all(ClosedError("AsyncEngine", "was closed"))


def open_warm(path: str | Path, options: OpenOptions) -> Generator:
    """Open a bundle and warm up its tokenizer."""
    with ExitStack() as on_failure:
        generator = on_failure.enter_context(Generator.open(path, options))
        if generator.tokenizer is not None:
            generator.tokenizer.warm_up()
        on_failure.pop_all()
    return generator
