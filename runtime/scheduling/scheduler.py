"""Scheduler: decides whether a running batch runs prompts, a part of one, or a step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ...engines.constants import integer
from ..admission import Admission
from .running_request import RunningRequest

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class ClientQueues(Generic[K, T]):
    """Waiting items in one queue per client; clients take turns (round robin).

    A client's items keep their order of arrival. A client whose item was served goes to the end,
    and so does one that had nothing waiting, so each client waits for at most one item of every
    client before it. With one client the order is that of arrival.

    >>> queues = ClientQueues[int, str]()
    >>> for key, (client, item) in enumerate([("a", "a1"), ("a", "a2"), ("b", "b1")]):
    ...     queues.add(key, item, client)
    >>> list(queues)
    ['a1', 'b1', 'a2']
    """

    def __init__(self) -> None:
        self._queues: dict[str, dict[K, T]] = {}  # by client, in the order of turns
        self._clients: dict[K, str] = {}  # by item

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[T]:
        """Yield all items in the order in which they are served unless others arrive."""
        rounds = deque(iter(queue.values()) for queue in self._queues.values())
        while rounds:
            queue = rounds.popleft()
            for item in queue:
                yield item
                rounds.append(queue)
                break

    def add(self, key: K, item: T, client: str) -> None:
        """Queue an item after the others of its client."""
        self._clients[key] = client
        self._queues.setdefault(client, {})[key] = item

    def serve(self, key: K) -> None:
        """Remove a waiting item; its client's next turn comes after all other clients."""
        client = self._clients.pop(key)
        queue = self._queues.pop(client)
        del queue[key]
        if queue:
            self._queues[client] = queue

    def discard(self, key: K) -> bool:
        """Remove an item without using its client's turn; return False if it is unknown."""
        if (client := self._clients.pop(key, None)) is None:
            return False
        del self._queues[client][key]
        if not self._queues[client]:
            del self._queues[client]
        return True


@dataclass(frozen=True)
class Prefill:
    """Run the prompts of these requests in one call, after which the requests run."""

    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Chunk:
    """Run the next tokens of a prompt; the caller calls `prompt_ran` after the last ones."""

    number: int
    is_first: bool


@dataclass(frozen=True)
class Decode:
    """Run a step of all running rows."""


@dataclass(frozen=True)
class Wait:
    """Do nothing until a request arrives."""


# Padding that every row may have, because running it costs less than reading the weights for
# another call (12 tokens of OPT-1.3b in int8 on two cores).
_CHEAP_PADDING = integer("cheap_padding")

Action = Prefill | Chunk | Decode | Wait


class Scheduler:
    """Admits requests to ``slots`` rows; it runs nothing itself and its caller reads the clock.

    Clients take turns, one request each (`ClientQueues`); requests of one client are served in
    order of arrival. Prompts of similar length (the shortest at least half the longest) share a
    call of at most ``max_prefill_tokens``, including padding. A step follows each prefill call, so
    that the gap between two tokens of a text is at most one such call and one step. No request
    overtakes the one whose turn it is while that waits for rows or memory, so none starves.

    ``fits`` returns whether there is memory to admit requests together, ``runs_in_chunks`` whether
    a request's prompt runs alone, in chunks.
    """

    def __init__(
        self,
        slots: int,
        max_prefill_tokens: int,
        admission: Admission,
        fits: Callable[[Sequence[RunningRequest]], bool],
        runs_in_chunks: Callable[[RunningRequest], bool],
        *,
        fills_first: bool = False,
    ) -> None:
        self._slots = slots
        self._max_prefill_tokens = max_prefill_tokens
        self._admission = admission
        self._fits = fits
        self._runs_in_chunks = runs_in_chunks
        self._fills_first = fills_first
        self._waiting = ClientQueues[int, RunningRequest]()
        self._running: dict[int, int] = {}  # request number -> running rows
        self._chunked: RunningRequest | None = None  # the request whose prompt runs in chunks
        self._owes_step = False
        self._since: float | None = None  # when the next request could first have been admitted

    @property
    def num_waiting(self) -> int:
        """The number of waiting requests."""
        return len(self._waiting)

    @property
    def is_busy(self) -> bool:
        """True while a request waits, runs, or has its prompt run in chunks."""
        return bool(self._waiting or self._running or self._chunked)

    @property
    def in_chunks(self) -> int | None:
        """The number of the request whose prompt runs in chunks."""
        return None if self._chunked is None else self._chunked.number

    @property
    def running_rows(self) -> int:
        """The number of running rows, without those whose prompt still runs in chunks."""
        return sum(self._running.values())

    def add(self, request: RunningRequest) -> None:
        """Queue a request, which has at most as many rows as there are slots."""
        assert request.num_rows <= self._slots, request
        self._waiting.add(request.number, request, request.client)

    def cancel(self, number: int) -> None:
        """Forget a request, whether it waits or runs."""
        self._waiting.discard(number)
        self._running.pop(number, None)
        if self.in_chunks == number:
            self._chunked = None

    def prompt_ran(self) -> None:
        """Note that the prompt in chunks has run to its end, so its request runs from now on."""
        request, self._chunked = self._chunked, None
        assert request is not None, "no prompt runs in chunks"
        self._running[request.number] = request.num_rows

    def row_ended(self, number: int) -> None:
        """Free one row of a running request."""
        self._running[number] -= 1
        if not self._running[number]:
            del self._running[number]

    def next_action(self, now: float) -> Action:
        """Return what to do at ``now``; the caller does it before the next call."""
        if self._owes_step and self._running and not self._fills_first:
            self._owes_step = False
            return Decode()
        is_filling, self._owes_step = self._owes_step, False
        if self._chunked is not None:
            self._owes_step = True
            return Chunk(self._chunked.number, is_first=False)
        group = self._group()
        if group and (is_filling or not self._holds(now)):
            return self._admit(group)
        if not group:
            self._since = None
        return Decode() if self._running else Wait()

    def _free(self) -> int:
        return self._slots - self.running_rows

    def _group(self) -> list[RunningRequest]:
        """Return the next request, if it fits, and others of similar length that fit with it."""
        group: list[RunningRequest] = []
        free = self._free()
        shortest = longest = 0
        for request in self._waiting:
            low = min(shortest or request.prompt_length, request.prompt_length)
            high = max(longest, request.prompt_length)
            is_alike = high <= max(2 * low, low + _CHEAP_PADDING)
            is_alike &= high * (len(group) + 1) <= self._max_prefill_tokens
            if group and not is_alike:
                continue
            if request.num_rows > free:
                break  # no later request may overtake it
            runs_alone = self._runs_in_chunks(request)
            if group and runs_alone:
                continue
            if not self._fits([*group, request]):
                break
            group.append(request)
            free -= request.num_rows
            shortest, longest = low, high
            if runs_alone:
                break
        return group

    def _holds(self, now: float) -> bool:
        """Return True if the admission rule holds waiting requests back; note since when."""
        waiting = sum(request.num_rows for request in self._waiting)
        if self._fills_first and waiting <= self._free():
            self._since = None
            return False  # no further request will share the call
        self._since = now if self._since is None else self._since
        return self._admission.holds(
            waiting=waiting,
            free=self._free(),
            running=self.running_rows,
            since=self._since,
            now=now,
        )

    def _admit(self, group: Sequence[RunningRequest]) -> Action:
        self._since = None
        for request in group:
            self._waiting.serve(request.number)
        self._owes_step = True
        first = group[0]
        if self._runs_in_chunks(first):
            self._chunked = first
            return Chunk(first.number, is_first=True)
        for request in group:
            self._running[request.number] = request.num_rows
        return Prefill(tuple(request.number for request in group))
