"""Dispatcher: hands requests to the worker, and to the next one after a crash."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import ceil
from threading import Lock
from time import monotonic

from ....engines.errors import UsageError, WorkerDiedError
from ..engine_loop import Cancellation, ScoreResult, StepResult
from ..pending import PendingRequests
from ..stream import PendingRequest, RequestStream, ServedRequest
from .messages import Begun, LogprobParts, Outbox, Refused, ScorePart, Stepped, Submission

_MOST_BLAMES = 4096  # hashes that are remembered
_DEATHS = 2  # with which a request is refused
_MOST_SENDS = 2  # of one request: it is tried again once
_ENDED_WELL = frozenset({"stop", "length"})


class Suspects:
    """Count how many workers died with which request.

    A death makes a suspect of every request that ran, though only one may be to blame. So at most
    one suspect runs at a time from then on: a second death has one suspect alone, which is poison.

    Each ``timeout`` seconds without a death forgive one. A poisonous request is thus tried again
    after that time, as a suspect, and refused anew if one more worker dies with it. ``clock``
    returns seconds and never goes back.
    """

    def __init__(self, timeout: float, clock: Callable[[], float] = monotonic) -> None:
        self._timeout = timeout
        self._clock = clock
        # Deaths that a request is blamed for, and the time of the last; the latest comes last.
        self._blames: dict[str, tuple[int, float]] = {}

    def blame(self, contents: Iterable[str]) -> None:
        """Note that a worker died while these ran."""
        now = self._clock()
        for content in dict.fromkeys(contents):
            deaths = min(self._deaths(content) + 1, _DEATHS)
            self._blames.pop(content, None)
            self._blames[content] = (deaths, now)
        while len(self._blames) > _MOST_BLAMES:
            del self._blames[next(iter(self._blames))]

    def clear(self, content: str) -> None:
        """Acquit a request that ran to its end."""
        self._blames.pop(content, None)

    def has(self, content: str) -> bool:
        """Return whether a worker died while it ran, and that is not forgiven."""
        return self._deaths(content) > 0

    def is_poison(self, content: str) -> bool:
        """Return whether it must not run now."""
        return self._deaths(content) >= _DEATHS

    def seconds_left(self, content: str) -> float:
        """Return how long a poisonous request stays refused."""
        _, last = self._blames.get(content, (0, -self._timeout))
        return max(0.0, last + self._timeout - self._clock())

    def __bool__(self) -> bool:
        """Return whether there may be any; forgets those whose deaths are all forgiven."""
        while self._blames and not self._deaths(oldest := next(iter(self._blames))):
            del self._blames[oldest]
        return bool(self._blames)

    def __len__(self) -> int:
        return len(self._blames)

    def _deaths(self, content: str) -> int:
        """Return how many deaths it is blamed for that are not forgiven yet."""
        now = self._clock()
        deaths, last = self._blames.get(content, (0, now))
        return max(0, deaths - int((now - last) / self._timeout))


class Dispatcher:
    """Hands pending requests to the worker that is there, and to the next one what the last lost.

    ``outbox`` of the worker is None while there is none. Safe from all threads;
    `PendingRequests` is never asked with the lock held, since it calls `send` with its own.
    """

    def __init__(self, requests: PendingRequests, suspects: Suspects) -> None:
        self._requests = requests
        self._lock = Lock()  # guards all that follows
        self._outbox: Outbox | None = None
        self._unsent: dict[str, PendingRequest] = {}  # in order of arrival
        self._sent: dict[str, PendingRequest] = {}
        self._suspects = suspects
        self._watched: str | None = None  # the suspect that the worker has
        self._parts = LogprobParts()  # for the supervisor's thread alone
        self._heard = 0.0  # of time.monotonic: from the worker, or when it got something to do

    @property
    def is_up(self) -> bool:
        """True while a worker takes requests."""
        return self._outbox is not None

    @property
    def seconds_silent(self) -> float:
        """Seconds since a busy worker last sent a message."""
        with self._lock:
            is_busy = self._outbox is not None and self._sent
            return monotonic() - self._heard if is_busy else 0.0

    def require_sound(self, asked: ServedRequest) -> None:
        """Raise UsageError for a request with which workers die."""
        with self._lock:
            has_suspects = bool(self._suspects)
        if not has_suspects:
            return
        content = Submission.of(asked).content()
        with self._lock:
            if self._suspects.is_poison(content):
                raise self._poison(content)

    def send(self, pending: PendingRequest) -> None:
        """Hand a request to the worker, or let it wait for one."""
        with self._lock:
            self._unsent[pending.request_id] = pending
            self._send_unsent()

    def cancel(self, request_id: str, reason: str) -> None:
        """End a request, wherever it is."""
        with self._lock:
            pending = self._unsent.pop(request_id, None)
            sent = self._sent.get(request_id)
            if pending is None and sent is not None and sent.end_reason is None:
                sent.end_reason = reason
                if self._outbox is not None:
                    self._outbox.send(Cancellation(request_id, reason))
        if pending is not None:
            self._requests.give_up(request_id, reason, has_left=True)

    def end_late(self) -> None:
        """End those that wait for a worker longer than they may."""
        now = monotonic()
        with self._lock:
            late = [name for name, one in self._unsent.items() if one.asked.is_late(now)]
        for request_id in late:
            self.cancel(request_id, "deadline")

    def worker_is_up(self, outbox: Outbox) -> None:
        """Hand over what waits."""
        with self._lock:
            self._outbox = outbox
            self._send_unsent()

    def worker_died(self, reason: str) -> int:
        """End what ran, let the rest wait for the next worker; how many ran."""
        with self._lock:
            sent, self._sent = list(self._sent.values()), {}
            self._parts.clear()
            self._outbox = self._watched = None
            ran = [pending for pending in sent if pending.has_begun]
            self._suspects.blame(_content(pending) for pending in ran)
            kept = [
                one
                for one in sent
                if not one.has_begun and not one.end_reason and one.sends < _MOST_SENDS
            ]
            self._unsent = {one.request_id: one for one in kept} | self._unsent
            waiting = self._unsent.values()
            poison = [one for one in waiting if self._suspects.is_poison(_content(one))]
            for pending in poison:
                del self._unsent[pending.request_id]
        for pending in sent:
            if pending.end_reason is not None:
                self._requests.give_up(pending.request_id, pending.end_reason, has_left=True)
        self._requests.end(ran, WorkerDiedError("worker", f"died while the text ran ({reason})"))
        for pending in poison:
            self._requests.end([pending], self._poison(_content(pending)))
        lost = [pending for pending in sent if pending not in kept]
        problem = f"died twice while the request waited ({reason})"
        self._requests.end(lost, WorkerDiedError("worker", problem))
        return len(ran)

    def begin(self, message: Begun) -> None:
        """Note the requests whose prompts run now."""
        self._hear()
        self._requests.begin(message.request_ids)

    def add_part(self, message: ScorePart) -> None:
        """Keep a part of a result until the rest of it comes."""
        self._hear()
        self._parts.take(message)

    def step(self, message: Stepped) -> None:
        """Pass on a step's results, with prompt texts and log-probabilities restored."""
        self._parts.take(message)
        result = StepResult(list(message.deltas))
        with self._lock:
            self._heard = monotonic()
            for output in message.ended:
                pending = self._sent.pop(output.request_id, None)
                output = self._parts.completed(output)
                if isinstance(pending, RequestStream):
                    result.ended.append(replace(output, prompt=pending.prompt))
                    reasons = (one.finish_reason for one in output.outputs)
                    self._acquit(pending, ended_well=_ENDED_WELL.issuperset(reasons))
            for request_id, scores in message.scored:
                pending = self._sent.pop(request_id, None)
                scores = self._parts.scored(request_id, scores)
                if pending is not None:
                    result.scored.append(ScoreResult(request_id, scores))
                    self._acquit(pending, ended_well=True)
            self._send_unsent()
        self._requests.step(result)
        if self._unsent:
            self.end_late()

    def refuse(self, message: Refused) -> None:
        """The worker does not take a request."""
        with self._lock:
            self._heard = monotonic()
            pending = self._sent.pop(str(message.request_id), None)
            if self._watched == message.request_id:
                self._watched = None
            self._send_unsent()
        if pending is not None:
            self._requests.end([pending], message.error())

    def _hear(self) -> None:
        with self._lock:
            self._heard = monotonic()

    def _send_unsent(self) -> None:
        """Hand over what waits, but for suspects while the worker has one."""
        if self._outbox is None:
            return
        for request_id, pending in list(self._unsent.items()):
            submission = Submission.of(pending.asked)
            if self._suspects and self._suspects.has(submission.content()):
                if self._watched is not None:
                    continue
                self._watched = request_id
            del self._unsent[request_id]
            pending.sends += 1
            if not self._sent:
                self._heard = monotonic()
            self._sent[request_id] = pending
            self._outbox.send(submission)

    def _acquit(self, pending: PendingRequest, *, ended_well: bool) -> None:
        """Clear a suspect that has left the worker, which lives."""
        if self._watched == pending.request_id:
            self._watched = None
            if ended_well:
                self._suspects.clear(_content(pending))

    def _poison(self, content: str) -> UsageError:
        return UsageError(
            "prompt",
            "is refused: this request was running when a worker died, twice; change it, or send "
            f"it again in {ceil(self._suspects.seconds_left(content))} s",
        )


def _content(pending: PendingRequest) -> str:
    return Submission.of(pending.asked).content()
