"""PendingRequests: the requests of one engine that have not ended, and whether more are taken."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from ...engines.errors import ClosedError, OverloadedError, UsageError
from ...engines.host.process import HomeProcess
from .engine_loop import StepResult
from .stream import PendingRequest, RequestStream


class PendingRequests:
    """The requests of one engine: let in while there is room, ended one by one.

    A request whose engine does not end it in time ends for its client alone: its name stays in
    use, and its place taken, until the engine has let it go.

    ``owner`` names the engine in errors. Safe from all threads.
    """

    def __init__(self, owner: str, max_waiting: int) -> None:
        self._owner = owner
        self._max_waiting = max_waiting
        self._lock = threading.Lock()
        self.home = HomeProcess(owner, "open an engine here")  # a fork has no thread to answer
        self._by_id: dict[str, PendingRequest] = {}  # in order of arrival
        self._num_waiting = 0
        self._num_unanswered = 0
        self._on_idle: set[Callable[[], None]] = set()
        self._refusal: str | None = None
        self.failure: Future[str] = Future()  # done once `fail` was called: why

    @property
    def refusal(self) -> str | None:
        """The reason why requests are refused, or None."""
        return self.home.refusal if self.home.is_left else self._refusal

    @property
    def waiting(self) -> int:
        """The number of requests that have not begun."""
        return self._num_waiting

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._by_id

    def all(self) -> list[PendingRequest]:
        """A snapshot, in order of arrival."""
        with self._lock:
            return list(self._by_id.values())

    def admit(
        self,
        pending: PendingRequest,
        *,
        cancel: Callable[[str, str], None],
        send: Callable[[PendingRequest], None],
        retry_after: Callable[[], float],
    ) -> None:
        """Admit a request and hand it to ``send``, in order of arrival.

        ``cancel`` asks the engine to end a request, with a reason, when its client leaves it and at
        its deadline. Raises UsageError for a request_id that is in use, OverloadedError if too many
        requests wait, and ClosedError if none is taken any more.
        """
        request_id = pending.request_id
        with self._lock:
            if self._refusal is not None:
                raise ClosedError(self._owner, f"{self._refusal}; no request is taken")
            if request_id in self._by_id:
                problem = f"{request_id!r} is in use; leave it out, or choose another"
                raise UsageError("request_id", problem)
            if self._num_waiting >= self._max_waiting:
                problem = (
                    f"{self._num_waiting} requests wait, as many as max_waiting allows; "
                    "try again later"
                )
                raise OverloadedError(self._owner, problem, retry_after=retry_after())
            self._by_id[request_id] = pending
            self._num_waiting += 1
            self._num_unanswered += 1
            send(pending)
        pending.enter(
            partial(cancel, request_id),
            give_up=lambda: self.give_up(request_id, "deadline", has_left=False),
        )

    def refuse(self, reason: str) -> None:
        """Let nothing in from now on."""
        with self._lock:
            self._refusal = reason

    def fail(self, reason: str, error: Exception) -> None:
        """Let nothing in from now on, and end all with ``error``; done for good."""
        self.refuse(f"has failed ({reason})")
        self.end(self.all(), error)
        if not self.failure.done():
            self.failure.set_result(reason)

    async def wait_until_idle(self, timeout: float | None) -> bool:
        """Wait until all clients have their ends; False if ``timeout`` seconds passed first."""
        idle = asyncio.Event()
        wake = partial(_call_soon, asyncio.get_running_loop(), idle.set)
        with self._lock:
            if not self._num_unanswered:
                return True
            self._on_idle.add(wake)
        try:
            async with asyncio.timeout(timeout):
                await idle.wait()
        except TimeoutError:
            return False
        finally:
            with self._lock:
                self._on_idle.discard(wake)
        return True

    def begin(self, request_ids: Sequence[str]) -> None:
        """These no longer wait."""
        with self._lock:
            for pending in filter(None, map(self._by_id.get, request_ids)):
                self._num_waiting -= not pending.has_begun
                pending.begin()

    def step(self, result: StepResult) -> None:
        """Hand a step's deltas, and the results of what it ended, to their event loops.

        What is not known, since it was ended meanwhile, is dropped.
        """
        posts = defaultdict[asyncio.AbstractEventLoop, list[Callable[[], None]]](list)
        for request_id, delta in result.deltas:
            pending = self._by_id.get(request_id)
            if isinstance(pending, RequestStream):
                posts[pending.loop].append(partial(pending.push, delta))
        for output in result.ended:
            if (pending := self._answer(output.request_id)) is not None:
                posts[pending.loop].append(partial(pending.finish, output))
        for score in result.scored:
            if (pending := self._answer(score.request_id)) is not None:
                posts[pending.loop].append(partial(pending.finish, score.output, score.error))
        for loop, calls in posts.items():
            _call_soon(loop, partial(_call_all, calls))

    def end(self, pending: Collection[PendingRequest], error: Exception) -> None:
        """End these with an error."""
        for one in pending:
            if self._answer(one.request_id) is not None:
                _call_soon(one.loop, partial(one.finish, None, error))

    def give_up(self, request_id: str, reason: str, *, has_left: bool) -> None:
        """End a request with what has come of it, ``reason`` its stop_reason.

        ``has_left``: no engine has it any more, or ever had.
        """
        pending = self._answer(request_id, has_left=has_left)
        if pending is not None:
            _call_soon(pending.loop, partial(pending.give_up, reason))

    def _answer(self, request_id: str, *, has_left: bool = True) -> PendingRequest | None:
        """Return a request whose client still waits, for its end; forget one that has left."""
        with self._lock:
            pending = self._by_id.get(request_id)
            if pending is None:
                return None
            if has_left:
                del self._by_id[request_id]
                self._num_waiting -= not pending.has_begun
            if pending.is_answered:
                return None
            pending.is_answered = True
            self._num_unanswered -= 1
            if not self._num_unanswered:
                for wake in self._on_idle:
                    wake()
        return pending


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Call in the loop's thread; do nothing if the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call)


def _call_all(calls: list[Callable[[], None]]) -> None:
    for call in calls:
        call()
