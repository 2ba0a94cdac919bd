"""Send requests at chosen times and record their clients' view of the answers.

>>> results = await ClosedLoop(16).send(client, requests)
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter

from benchmarks.load.client import Client, RequestFailed
from benchmarks.load.requests import LoadRequest


@dataclass
class Result:
    """One request as its client saw it; times are seconds of one clock."""

    due: float  # when it should be sent: a late generator makes no server look better
    events: list[tuple[float, int]] = field(
        default_factory=list
    )  # times, and tokens that arrived together
    end: float = 0.0
    error: str | None = None
    left: bool = False  # the client left before the end

    @property
    def tokens(self) -> int:
        """Number of tokens received."""
        return sum(count for _, count in self.events)

    @property
    def is_whole(self) -> bool:
        """True if the request was answered completely."""
        return self.error is None and not self.left

    @property
    def time_to_first_token(self) -> float:
        """Seconds to the first token, for a request that has one."""
        return self.events[0][0] - self.due

    @property
    def gaps(self) -> list[float]:
        """Seconds between tokens; of tokens that arrive together, all but the first have gap 0."""
        found: list[float] = []
        last = None
        for time, count in self.events:
            found += [] if last is None else [time - last]
            found += [0.0] * (count - 1)
            last = time
        return found

    @property
    def latency(self) -> float:
        """Seconds until the request ended."""
        return self.end - self.due


@dataclass(frozen=True)
class ClosedLoop:
    """A fixed number of clients, each sending its next request when its last one has ended."""

    clients: int

    async def send(self, client: Client, requests: Iterator[LoadRequest]) -> list[Result]:
        """Send all requests; results are in the order in which they were due."""
        results: list[Result] = []

        async def one_client() -> None:
            for request in requests:
                results.append(Result(perf_counter()))
                await _send(client, request, results[-1])

        async with asyncio.TaskGroup() as tasks:
            for _ in range(self.clients):
                tasks.create_task(one_client())
        return results


@dataclass(frozen=True)
class Poisson:
    """Open loop: ``rate`` requests per second on average, regardless of the server's speed."""

    rate: float
    seed: int = 0

    async def send(self, client: Client, requests: Iterator[LoadRequest]) -> list[Result]:
        """Send each request when it is due, regardless of earlier ones."""
        draw = random.Random(self.seed)
        results: list[Result] = []
        due = perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for request in requests:
                await asyncio.sleep(due - perf_counter())
                results.append(Result(due))
                tasks.create_task(_send(client, request, results[-1]))
                due += draw.expovariate(self.rate)
        return results


async def _send(client: Client, request: LoadRequest, result: Result) -> None:
    """Send one request and read it to its end, or until its client leaves."""
    leave_after = request.max_tokens if request.leave_after is None else request.leave_after
    try:
        async with client.stream(request) as events:
            result.left = request.leave_after == 0
            while not result.left and (tokens := await anext(events, None)) is not None:
                result.events.append((perf_counter(), tokens))
                result.left = leave_after <= result.tokens < request.max_tokens
    except RequestFailed as failure:
        result.error = str(failure)
    else:
        if not result.left and result.tokens != request.max_tokens:
            result.error = "not as many tokens as requested"
    result.end = perf_counter()
