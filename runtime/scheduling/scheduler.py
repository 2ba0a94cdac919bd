"""What an engine does next: a prompt, a part of one, a step, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .admission import Admission, Situation
from .client_queues import ClientQueues


@dataclass(frozen=True)
class Job:
    """A request as far as scheduling goes: its number, its prompt's tokens, its completions.

    ``client``: who asks; requests without a name are those of one client.
    """

    number: int
    prompt_length: int
    rows: int = 1
    client: str = ""


@dataclass(frozen=True)
class Prefill:
    """Run these requests' prompts in one call; they run from then on."""

    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Chunk:
    """Run tokens ``start`` … ``stop`` - 1 of a long prompt; at its end the request runs."""

    number: int
    start: int
    stop: int


@dataclass(frozen=True)
class Decode:
    """Run a step of all rows that run."""


@dataclass(frozen=True)
class Wait:
    """Nothing can be done before ``until``, seconds of the clock; None: before something comes."""

    until: float | None


# Tokens that a row may be padded by whatever its length: running them costs less than reading the
# weights for another call (12 tokens of OPT-1.3b in int8 on two cores).
_CHEAP_PADDING = 16

Action = Prefill | Chunk | Decode | Wait
Fits = Callable[[Sequence[Job]], bool]
KeptTokens = Callable[[Job], int]


def _no_tokens(job: Job) -> int:
    return 0


class Scheduler:
    """Lets requests into ``slots`` rows; it runs nothing itself and reads no clock.

    Clients take turns, a request each (`ClientQueues`); requests of one client are let in first
    come, first served. Prompts of like length (the shortest at least half the longest) share a
    call of at most ``max_prefill_tokens``, padding included. Longer ones run alone, in chunks of
    that many. After a call for prompts comes a step, so that the gap between two tokens of a text
    is at most one such call and one step. The next call for prompts has the request whose turn it
    is, which none passes while it waits for rows or memory, so nobody starves.

    ``max_chunk_tokens``: of one prompt in one call, where that is less.

    ``fits``: whether jobs can be let in together, by memory; asked for what is let in next.
    ``kept_tokens``: how many of a prompt's first tokens need not run; it then runs alone, in chunks
    from there on.
    """

    def __init__(
        self,
        slots: int,
        max_prefill_tokens: int,
        admission: Admission,
        fits: Fits,
        *,
        kept_tokens: KeptTokens = _no_tokens,
        max_chunk_tokens: int | None = None,
        fills_first: bool = False,
    ) -> None:
        self._slots = slots
        self._max_prefill_tokens = max_prefill_tokens
        self._max_chunk_tokens = max_chunk_tokens or max_prefill_tokens
        self._admission = admission
        self._fits = fits
        self._kept_tokens = kept_tokens
        self._fills_first = fills_first
        self._waiting = ClientQueues[int, Job]()
        self._running: dict[int, int] = {}  # number -> rows that still run
        self._chunked: tuple[Job, int] | None = None  # and its tokens that have run
        self._owes_step = False
        self._since: float | None = None  # when the first that waits could have come in

    @property
    def waiting(self) -> tuple[Job, ...]:
        """Those that wait, in the order in which they are let in if no other comes."""
        return tuple(self._waiting)

    @property
    def num_waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    @property
    def is_busy(self) -> bool:
        """Whether a request waits, runs, or is under way in chunks."""
        return bool(self._waiting or self._running or self._chunked)

    @property
    def running_rows(self) -> int:
        """Rows that run; those of a prompt that is under way in chunks do not yet."""
        return sum(self._running.values())

    def add(self, job: Job) -> None:
        """Let a request wait, which has at most as many rows as there are slots."""
        assert job.rows <= self._slots, job
        self._waiting.add(job.number, job, job.client)

    def cancel(self, number: int) -> None:
        """Forget a request, wherever it is."""
        self._waiting.discard(number)
        self._running.pop(number, None)
        if self._chunked is not None and self._chunked[0].number == number:
            self._chunked = None

    def row_ended(self, number: int) -> None:
        """One row of a running request has ended."""
        self._running[number] -= 1
        if not self._running[number]:
            del self._running[number]

    def next_action(self, now: float) -> Action:
        """What to do at ``now``; the caller does it before it asks again."""
        if self._owes_step and self._running and not self._fills_first:
            self._owes_step = False
            return Decode()
        is_filling, self._owes_step = self._owes_step, False
        if self._chunked is not None:
            return self._next_chunk(*self._chunked)
        group = self._group()
        until = None if is_filling else self._held_until(group, now)
        if group and until is None:
            return self._let_in(group)
        if self._running:
            return Decode()
        return Wait(until)

    def _free(self) -> int:
        return self._slots - self.running_rows

    def _group(self) -> list[Job]:
        """Return the job whose turn it is, if it fits, and others of like length that do, too."""
        group: list[Job] = []
        free = self._free()
        shortest = longest = 0
        for job in self._waiting:
            low = min(shortest or job.prompt_length, job.prompt_length)
            high = max(longest, job.prompt_length)
            is_alike = high <= max(2 * low, low + _CHEAP_PADDING)
            is_alike &= high * (len(group) + 1) <= self._max_prefill_tokens
            if group and not is_alike:
                continue
            if job.rows > free:
                break  # whoever comes later must not pass it
            runs_alone = self._runs_in_chunks(job)
            if group and runs_alone:
                continue
            if not self._fits([*group, job]):
                break
            group.append(job)
            free -= job.rows
            shortest, longest = low, high
            if runs_alone:
                break
        return group

    def _runs_in_chunks(self, job: Job) -> bool:
        return job.prompt_length > self._max_chunk_tokens or self._kept_tokens(job) > 0

    def _held_until(self, group: Sequence[Job], now: float) -> float | None:
        waiting = sum(job.rows for job in self._waiting)
        if not group or (self._fills_first and waiting <= self._free()):
            self._since = None
            return None  # nobody else comes who could share the call
        self._since = now if self._since is None else self._since
        situation = Situation(
            waiting=waiting,
            free=self._free(),
            running=self.running_rows,
            since=self._since,
            now=now,
        )
        return self._admission.wait_until(situation)

    def _let_in(self, group: Sequence[Job]) -> Action:
        self._since = None
        for job in group:
            self._waiting.serve(job.number)
        first = group[0]
        if self._runs_in_chunks(first):
            return self._next_chunk(first, self._kept_tokens(first))
        for job in group:
            self._running[job.number] = job.rows
        self._owes_step = True
        return Prefill(tuple(job.number for job in group))

    def _next_chunk(self, job: Job, start: int) -> Chunk:
        stop = min(start + self._max_chunk_tokens, job.prompt_length)
        self._owes_step = True
        if stop < job.prompt_length:
            self._chunked = job, stop
        else:
            self._chunked = None
            self._running[job.number] = job.rows
        return Chunk(job.number, start, stop)
