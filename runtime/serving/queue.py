"""RequestQueue: the unfinished requests of one engine, waiting or sent to it."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from math import ceil
from time import monotonic

from ...engines.errors import ClosedError, OverloadedError, UsageError, WorkerDiedError
from ...engines.host.process import HomeProcess
from ..tokens.outputs import RequestOutput, ScoreOutput
from .messages import Begun, Cancellation, FromEngine, Refused, StepResult, ToEngine
from .stream import PendingRequest, RequestStream, ScoreFuture

_MOST_BLAMES = 4096  # hashes that are remembered
_DEATHS = 2  # after so many a request is refused
_MOST_SENDS = 2  # of one request, so it is tried again once
_ENDED_WELL = frozenset({"stop", "length"})


class Suspects:
    """Counts how many workers died while each request ran.

    A death makes every running request a suspect, although only one may be to blame. From then on
    at most one suspect runs at a time, so that a second death has a single suspect, which is
    poison.

    Every ``timeout`` seconds without a death, one death is forgiven. So a poisonous request is
    tried again after that time, as a suspect, and refused again if one more worker dies with it.
    ``clock`` returns seconds and never goes back.
    """

    def __init__(self, timeout: float = 3600.0, clock: Callable[[], float] = monotonic) -> None:
        self._timeout = timeout
        self._clock = clock
        # By hash, the deaths for which a request is blamed and the time of the last; latest last.
        self._blames: dict[str, tuple[int, float]] = {}

    def blame(self, contents: Iterable[str]) -> None:
        """Record that a worker died while these requests ran."""
        now = self._clock()
        for content in dict.fromkeys(contents):
            deaths = min(self._deaths(content) + 1, _DEATHS)
            self._blames.pop(content, None)
            self._blames[content] = (deaths, now)
        while len(self._blames) > _MOST_BLAMES:
            del self._blames[next(iter(self._blames))]

    def clear(self, content: str) -> None:
        """Clear a request that ran to its end of suspicion."""
        self._blames.pop(content, None)

    def has(self, content: str) -> bool:
        """Return whether a death of a worker while it ran is not forgiven yet."""
        return self._deaths(content) > 0

    def is_poison(self, content: str) -> bool:
        """Return whether the request must not run now."""
        return self._deaths(content) >= _DEATHS

    def seconds_left(self, content: str) -> float:
        """Return how long a poisonous request stays refused."""
        _, last = self._blames.get(content, (0, -self._timeout))
        return max(0.0, last + self._timeout - self._clock())

    def __bool__(self) -> bool:
        """Return whether there may be suspects; forgets those whose deaths are all forgiven."""
        while self._blames and not self._deaths(oldest := next(iter(self._blames))):
            del self._blames[oldest]
        return bool(self._blames)

    def __len__(self) -> int:
        return len(self._blames)

    def _deaths(self, content: str) -> int:
        """Return the number of deaths for which it is blamed that are not forgiven yet."""
        now = self._clock()
        deaths, last = self._blames.get(content, (0, now))
        return max(0, deaths - int((now - last) / self._timeout))


class RequestQueue:
    """The unfinished requests of one engine, admitted while there is room.

    A connected engine gets them in order of arrival; after its death the next one gets those that
    had not begun. If an engine does not end a request in time, it ends only for its client: until
    the engine has released it, its id stays in use and it counts as waiting.

    ``owner`` names the engine in errors. Any thread may call it.
    """

    def __init__(self, owner: str, max_waiting: int, suspects: Suspects | None = None) -> None:
        self._owner = owner
        self._max_waiting = max_waiting
        self._suspects = Suspects() if suspects is None else suspects
        self._lock = threading.Lock()  # guards all attributes below
        self.home = HomeProcess(owner, "open an engine here")  # a fork has no thread to answer
        self._by_id: dict[str, PendingRequest] = {}  # in order of arrival
        self._unsent: dict[str, PendingRequest] = {}  # requests that no engine has
        self._send: Callable[[ToEngine], None] | None = None  # None while there is no engine
        self._watched: str | None = None  # the suspect that the engine has
        self._heard = 0.0  # time.monotonic of the last message, or when the engine became busy
        self._num_waiting = 0
        self._num_unanswered = 0
        self._on_idle: set[Callable[[], None]] = set()
        self._refusal: str | None = None
        self.failure: Future[str] = Future()  # done once `fail` is called, with the reason

    @property
    def refusal(self) -> str | None:
        """The reason why requests are refused, or None."""
        return self.home.refusal if self.home.is_left else self._refusal

    @property
    def waiting(self) -> int:
        """The number of requests that have not begun."""
        return self._num_waiting

    @property
    def is_connected(self) -> bool:
        """True while an engine accepts requests."""
        return self._send is not None

    @property
    def seconds_silent(self) -> float:
        """Seconds since a busy engine last posted a message, so the age of its current step."""
        with self._lock:
            is_busy = self._send is not None and len(self._by_id) > len(self._unsent)
            return monotonic() - self._heard if is_busy else 0.0

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._by_id

    def admit(self, pending: PendingRequest, retry_after: Callable[[], float]) -> None:
        """Admit a request and send it to the engine, or let it wait for one.

        Raises UsageError for a request_id in use and for a request that kills engines,
        OverloadedError if too many wait, and ClosedError once requests are refused.
        """
        request_id = pending.request_id
        with self._lock:
            if self._refusal is not None:
                raise ClosedError(self._owner, f"{self._refusal}; no request is taken")
            if request_id in self._by_id:
                problem = f"{request_id!r} is in use; leave it out, or choose another"
                raise UsageError("request_id", problem)
            if self._is_poison(pending):
                raise self._poison(pending)
            if self._num_waiting >= self._max_waiting:
                problem = (
                    f"{self._num_waiting} requests wait, as many as max_waiting allows; "
                    "try again later"
                )
                raise OverloadedError(self._owner, problem, retry_after=retry_after())
            self._by_id[request_id] = self._unsent[request_id] = pending
            self._num_waiting += 1
            self._num_unanswered += 1
            self._send_unsent()
        pending.enter(
            partial(self.cancel, request_id),
            give_up=lambda: self._give_up(request_id, "deadline", has_left=False),
        )

    def require_may_wait(self, count: int) -> None:
        """Raise UsageError for more requests than may wait at once."""
        if count > self._max_waiting:
            raise UsageError(
                "prompt",
                f"is a list of {count}; allowed: max_waiting, which is {self._max_waiting}; submit "
                "fewer, or raise it",
            )

    def connect(self, send: Callable[[ToEngine], None]) -> None:
        """Send waiting and later requests with ``send``, which must not block."""
        with self._lock:
            self._send = send
            self._send_unsent()

    def disconnect(self, reason: str) -> int:
        """End what the dead engine ran, let the rest wait for the next; return how many ran."""
        with self._lock:
            sent = [one for name, one in self._by_id.items() if name not in self._unsent]
            self._send = self._watched = None
            ran = [one for one in sent if one.has_begun]
            self._suspects.blame(one.served.content() for one in ran)
            again = [
                one
                for one in sent
                if not (one.has_begun or one.end_reason) and one.sends < _MOST_SENDS
            ]
            self._unsent = {one.request_id: one for one in again} | self._unsent
            poison = [one for one in self._unsent.values() if self._is_poison(one)]
        for one in sent:
            if one.end_reason is not None:
                self._give_up(one.request_id, one.end_reason)
        self.end(ran, WorkerDiedError("worker", f"died while the text ran ({reason})"))
        for one in poison:
            self.end([one], self._poison(one))
        problem = f"died twice while the request waited ({reason})"
        lost = [one for one in sent if one not in again]
        self.end(lost, WorkerDiedError("worker", problem))
        return len(ran)

    def cancel(self, request_id: str, reason: str) -> None:
        """End a request, whether it waits or runs; does nothing for an unknown one."""
        with self._lock:
            is_unsent = request_id in self._unsent
            pending = self._by_id.get(request_id)
            if pending is not None and not is_unsent and pending.end_reason is None:
                pending.end_reason = reason
                if self._send is not None:
                    self._send(Cancellation(request_id, reason))
        if is_unsent:
            self._give_up(request_id, reason)

    def end_late(self) -> None:
        """End requests whose deadline passes while they wait for an engine."""
        now = monotonic()
        with self._lock:
            late = [name for name, one in self._unsent.items() if one.served.is_late(now)]
        for request_id in late:
            self.cancel(request_id, "deadline")

    def take(self, message: FromEngine) -> None:
        """Pass an engine's message on to the event loops of the requests that it concerns.

        Anything about requests that have ended meanwhile is dropped.
        """
        self._heard = monotonic()
        match message:
            case Begun():
                self._begin(message.request_ids)
            case StepResult():
                self._step(message)
            case Refused(request_id=str() as request_id):
                with self._lock:
                    pending = self._by_id.get(request_id)
                    self._acquit(request_id, None)
                self.end([] if pending is None else [pending], message.sent.error())

    def refuse(self, reason: str) -> None:
        """Refuse all further requests."""
        with self._lock:
            self._refusal = reason

    def fail(self, reason: str, error: Exception) -> None:
        """Refuse all further requests for good, and end all present ones with ``error``."""
        self.refuse(f"has failed ({reason})")
        self.end_all(error)
        if not self.failure.done():
            self.failure.set_result(reason)

    def end(self, pending: Collection[PendingRequest], error: Exception) -> None:
        """End these requests with an error."""
        for one in pending:
            if self._answer(one.request_id) is not None:
                _call_soon(one.loop, partial(one.finish, None, error))

    def end_all(self, error: Exception) -> None:
        """End all requests with an error."""
        with self._lock:
            pending = list(self._by_id.values())
        self.end(pending, error)

    async def wait_until_idle(self, timeout: float | None) -> bool:
        """Wait until every client has its result; return False after ``timeout`` seconds."""
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

    def _begin(self, request_ids: Collection[str]) -> None:
        with self._lock:
            for pending in filter(None, map(self._by_id.get, request_ids)):
                self._num_waiting -= not pending.has_begun
                pending.begin()

    def _step(self, result: StepResult) -> None:
        posts = defaultdict[asyncio.AbstractEventLoop, list[Callable[[], None]]](list)
        for request_id, delta in result.deltas:
            pending = self._by_id.get(request_id)
            if isinstance(pending, RequestStream):
                posts[pending.loop].append(partial(pending.push, delta))
        for request_id, entries in result.parts:
            pending = self._by_id.get(request_id)
            if isinstance(pending, ScoreFuture):
                posts[pending.loop].append(partial(pending.add, entries))
        ended: list[tuple[str, RequestOutput | ScoreOutput]] = [*result.scored]
        ended += [(output.request_id, output) for output in result.ended]
        for request_id, output in ended:
            if self._watched is not None:
                with self._lock:
                    self._acquit(request_id, output)
            if (pending := self._answer(request_id)) is not None:
                posts[pending.loop].append(partial(pending.finish, output))
        for loop, calls in posts.items():
            _call_soon(loop, partial(_call_all, calls))
        if self._unsent:
            self.end_late()

    def _give_up(self, request_id: str, reason: str, *, has_left: bool = True) -> None:
        """End a request with its tokens so far, and ``reason`` as its stop_reason.

        ``has_left``: no engine has it (any more).
        """
        pending = self._answer(request_id, has_left=has_left)
        if pending is not None:
            _call_soon(pending.loop, partial(pending.give_up, reason))

    def _answer(self, request_id: str, *, has_left: bool = True) -> PendingRequest | None:
        """Return a request to answer, None if it was answered; forget it if ``has_left``."""
        with self._lock:
            pending = self._by_id.get(request_id)
            if pending is None:
                return None
            if has_left:
                del self._by_id[request_id]
                self._unsent.pop(request_id, None)
                self._num_waiting -= not pending.has_begun
            if pending.is_answered:
                return None
            pending.is_answered = True
            self._num_unanswered -= 1
            if not self._num_unanswered:
                for wake in self._on_idle:
                    wake()
        return pending

    def _send_unsent(self) -> None:
        """Send waiting requests, except suspects while the engine has one."""
        if self._send is None or not self._unsent:
            return
        if len(self._by_id) == len(self._unsent):
            self._heard = monotonic()
        for request_id, pending in list(self._unsent.items()):
            if self._suspects and self._suspects.has(pending.served.content()):
                if self._watched is not None:
                    continue
                self._watched = request_id
            del self._unsent[request_id]
            pending.sends += 1
            self._send(pending.served)

    def _acquit(self, request_id: str, output: RequestOutput | ScoreOutput | None) -> None:
        """Let the next suspect run if the engine has ended the watched one and is still alive."""
        if self._watched != request_id:
            return
        self._watched = None
        completions = output.outputs if isinstance(output, RequestOutput) else ()
        ended_well = _ENDED_WELL.issuperset(one.finish_reason for one in completions)
        if output is not None and ended_well and request_id in self._by_id:
            self._suspects.clear(self._by_id[request_id].served.content())
        self._send_unsent()

    def _is_poison(self, pending: PendingRequest) -> bool:
        return bool(self._suspects) and self._suspects.is_poison(pending.served.content())

    def _poison(self, pending: PendingRequest) -> UsageError:
        seconds = ceil(self._suspects.seconds_left(pending.served.content()))
        return UsageError(
            "prompt",
            "is refused: this request was running when a worker died, twice; change it, or send "
            f"it again in {seconds} s",
        )


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Run ``call`` in the loop's thread; do nothing if the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call)


def _call_all(calls: list[Callable[[], None]]) -> None:
    for call in calls:
        call()
