"""AsyncEngine: one engine thread, any number of asyncio clients."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Self
from uuid import uuid4

from ...engines.bundle import Verify, WeightsPlace
from ...engines.errors import ClosedError, OverloadedError, UsageError
from ..batches.prompts import Prompt
from ..batches.requests import Request
from ..generator import Generator
from ..schedule import ExitSchedule
from ..schedule.text import format_schedule
from ..scheduling.admission import parse_admission
from ..scheduling.stats import EngineStats
from ..tokens.outputs import RequestOutput, StreamDelta
from ..tokens.sampling import SamplingParams
from .config import ServiceConfig
from .stream import RequestStream

_LOGGER = logging.getLogger(__name__)


@dataclass(eq=False)
class _Submitted:
    """A request on its way to the engine's thread, and there."""

    request: Request
    schedule: ExitSchedule
    deadline: float | None  # of time.monotonic
    stream: RequestStream = field(init=False)
    number: int | None = None  # in the engine, once it is there
    reason: str | None = None  # why it is to be cancelled


class AsyncEngine:
    """A bundle that many asyncio clients generate with at once; see `Engine` for what they get.

    >>> async with AsyncEngine.open("opt-1.3b-int8", schedule="2x") as engine:
    ...     async with engine.submit("The capital of France is", SamplingParams()) as stream:
    ...         async for delta in stream:  # leaving the block cancels
    ...             print(delta.text, end="")
    ...     output = await engine.generate("The capital of Spain is", SamplingParams())

    One thread owns the engines; `submit` may be called from any thread that runs an event loop.
    """

    def __init__(self, generator: Generator, config: ServiceConfig) -> None:
        """See `open`. ``generator`` is the engine's from here on: closed with it."""
        self._generator = generator
        self._config = config
        self._inbox: SimpleQueue[_Submitted | None] = SimpleQueue()
        self._by_number: dict[int, _Submitted] = {}  # of those in the engine; the thread's own
        self._lock = threading.Lock()  # guards the next two
        self._known: dict[str, _Submitted] = {}  # those that have not ended
        self._refusal: str | None = None  # why nothing is taken any more
        self._step_start: float | None = None
        self._is_idle = threading.Condition(self._lock)
        self._held = ExitStack()
        self._engine = self._held.enter_context(
            generator.engine(
                max_prefill_tokens=config.max_prefill_tokens, admission=config.admission
            )
        )
        self._thread = threading.Thread(target=self._serve, name="skipdec engine", daemon=True)
        self._thread.start()

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        path: str | Path,
        *,
        schedule: str | ExitSchedule | None = None,
        threads: int | None = None,
        max_batch_size: int = 8,
        kv_memory: int | str | None = None,
        raw_prompts: bool = False,
        weights: WeightsPlace = "mapped",
        verify: Verify = "full",
        max_waiting: int = 256,
        max_prefill_tokens: int | None = None,
        admission: str = "fcfs",
    ) -> AsyncIterator[Self]:
        """Open a bundle directory; leaving the block cancels what runs and frees all.

        ``max_waiting``, ``max_prefill_tokens`` and ``admission``: see `ServiceConfig`; everything
        else as in `Generator.open`, whose errors it raises.
        """
        config = ServiceConfig(
            max_waiting=max_waiting, max_prefill_tokens=max_prefill_tokens, admission=admission
        )
        parse_admission(config.admission)
        generator = await asyncio.to_thread(
            Generator.open,
            path,
            schedule=schedule,
            threads=threads,
            max_batch_size=max_batch_size,
            kv_memory=kv_memory,
            raw_prompts=raw_prompts,
            weights=weights,
            verify=verify,
        )
        engine = cls(generator, config)
        try:
            yield engine
        finally:
            await asyncio.to_thread(engine.close)

    @property
    def generator(self) -> Generator:
        """What it runs on: its model, tokenizer, bundle. It is busy as long as this is open."""
        return self._generator

    @property
    def refusal(self) -> str | None:
        """Why new requests are refused: it is draining, closed, or its engines keep failing."""
        return self._refusal

    @property
    def seconds_in_step(self) -> float:
        """How long the step that runs has taken so far; 0.0 where none does."""
        start = self._step_start
        return 0.0 if start is None else monotonic() - start

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        schedule: str | ExitSchedule | None = None,
        request_id: str | None = None,
        deadline: float | None = None,
    ) -> RequestStream:
        """Queue a request and return its stream; call it where an event loop runs.

        ``deadline``: seconds from now, after which it ends with finish_reason "abort" and
        stop_reason "deadline", whether it waits or runs.

        Raises, before it is queued, what `Engine.add` does; UsageError for a request_id that is in
        use, OverloadedError if too many wait, ClosedError while draining and when closed.
        """
        made, resolved = self._engine.prepare(prompt, params, schedule)
        name = request_id or uuid4().hex
        ends = None if deadline is None else monotonic() + deadline
        submitted = _Submitted(made, resolved, ends)
        submitted.stream = RequestStream(
            name, format_schedule(resolved), lambda: self._cancel(submitted, "cancelled")
        )
        with self._lock:
            self._require_room(name)
            self._known[name] = submitted
            self._inbox.put(submitted)
        return submitted.stream

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        schedule: str | ExitSchedule | None = None,
        request_id: str | None = None,
        deadline: float | None = None,
    ) -> RequestOutput:
        """The whole result of a request; cancelling the call cancels it."""
        stream = self.submit(
            prompt, params, schedule=schedule, request_id=request_id, deadline=deadline
        )
        async with stream:
            return await stream.output()

    async def abort(self, request_id: str) -> None:
        """End a request, if it has not ended; unknown ones are no error."""
        with self._lock:
            submitted = self._known.get(request_id)
        if submitted is not None:
            self._cancel(submitted, "cancelled")

    def stats(self) -> EngineStats:
        """The engine's; a request that has not reached it yet counts as waiting."""
        stats = self._engine.stats()
        waiting = len(self._known) - (stats.requests - stats.waiting)
        return replace(stats, waiting=max(stats.waiting, waiting))

    async def drain(self, timeout: float | None = None) -> bool:
        """Refuse new requests and wait until those there are have ended; whether they have."""
        self._refuse("is draining")
        return await asyncio.to_thread(self._wait_until_idle, timeout)

    def close(self) -> None:
        """Cancel everything and free all; idempotent, from any thread but the engine's."""
        self._refuse("is closed")
        self._inbox.put(None)
        self._thread.join()
        self._held.close()
        self._generator.close()

    def _require_room(self, name: str) -> None:
        if self._refusal is not None:
            raise ClosedError("AsyncEngine", f"{self._refusal}; no request is taken")
        if name in self._known:
            raise UsageError("request_id", f"{name!r} is in use; leave it out, or choose another")
        waiting = self.stats().waiting
        if waiting >= self._config.max_waiting:
            raise OverloadedError(
                "AsyncEngine",
                f"{waiting} requests wait, as many as max_waiting allows; try again later",
                retry_after=self._seconds_until_room(),
            )

    def _seconds_until_room(self) -> float:
        """Guessed from what a request has taken so far: at least a second."""
        stats = self._engine.stats()
        ended = stats.finished + stats.aborted
        busy = stats.prefill_seconds + stats.decode_seconds + stats.sampling_seconds
        return max(1.0, busy / ended if ended else 1.0)

    def _refuse(self, reason: str) -> None:
        with self._lock:
            self._refusal = reason

    def _wait_until_idle(self, timeout: float | None) -> bool:
        with self._lock:
            return self._is_idle.wait_for(lambda: not self._known, timeout)

    def _cancel(self, submitted: _Submitted, reason: str) -> None:
        submitted.reason = submitted.reason or reason
        self._inbox.put(submitted)  # wakes the thread

    # All that follows runs in the engine's thread.

    def _serve(self) -> None:
        try:
            while self._take_in():
                self._step_start = monotonic()
                deltas = self._engine.step()
                self._step_start = None
                self._post(deltas)
        except Exception as error:
            _LOGGER.exception("the engine's thread has failed")
            self._refuse(f"has failed ({error})")
            self._end_all(error)
        else:
            self._end_all(ClosedError("AsyncEngine", "was closed"))
        finally:
            self._step_start = None

    def _take_in(self) -> bool:
        """Take what clients sent, waiting for it where there is nothing to do; False to stop."""
        while True:
            try:
                submitted = self._inbox.get(block=not self._engine.is_busy)
            except Empty:
                break
            if submitted is None:
                return False
            if submitted.number is None and submitted.reason is None:
                self._begin(submitted)
            elif submitted.reason is not None:
                self._end_early(submitted)
        self._end_late()
        return True

    def _begin(self, submitted: _Submitted) -> None:
        submitted.number = self._engine.add_request(submitted.request, submitted.schedule)
        self._by_number[submitted.number] = submitted

    def _end_early(self, submitted: _Submitted) -> None:
        """End a request that was cancelled, in the engine or before it came there."""
        if submitted.number is None:
            self._begin(submitted)
        if submitted.number in self._by_number:
            self._post(self._engine.abort(submitted.number, submitted.reason))

    def _end_late(self) -> None:
        """End requests whose deadline is over."""
        now = monotonic()
        for submitted in list(self._by_number.values()):
            if submitted.deadline is not None and now > submitted.deadline:
                submitted.reason = "deadline"
                self._end_early(submitted)

    def _post(self, deltas: Sequence[StreamDelta]) -> None:
        """Hand a step's deltas, and the results of what it ended, to their event loops."""
        posts: dict[asyncio.AbstractEventLoop, _Post] = {}
        ended = []
        for delta in deltas:
            submitted = self._by_number[delta.request_index]
            post = posts.setdefault(submitted.stream.loop, _Post())
            post.deltas.append((submitted.stream, delta))
            if delta.finish_reason is not None and self._engine.has_ended(delta.request_index):
                ended.append(submitted)
        for submitted in dict.fromkeys(ended):
            assert submitted.number is not None
            del self._by_number[submitted.number]
            output = self._engine.take(submitted.number)
            output = replace(output, request_id=submitted.stream.request_id)
            posts[submitted.stream.loop].ends.append((submitted.stream, output, None))
            self._forget(submitted)
        for loop, post in posts.items():
            _call_soon(loop, post.deliver)

    def _end_all(self, error: Exception) -> None:
        with self._lock:
            left = list(self._known.values())
        for submitted in left:
            _call_soon(submitted.stream.loop, partial(submitted.stream.finish, None, error))
            self._forget(submitted)

    def _forget(self, submitted: _Submitted) -> None:
        with self._lock:
            self._known.pop(submitted.stream.request_id, None)
            self._is_idle.notify_all()


@dataclass
class _Post:
    """What a step has for the clients of one event loop."""

    deltas: list[tuple[RequestStream, StreamDelta]] = field(default_factory=list)
    ends: list[tuple[RequestStream, RequestOutput | None, Exception | None]] = field(
        default_factory=list
    )

    def deliver(self) -> None:
        for stream, delta in self.deltas:
            stream.push(delta)
        for stream, output, error in self.ends:
            stream.finish(output, error)


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """In the loop's thread; nothing if the loop is closed, and with it all who could read."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call)
