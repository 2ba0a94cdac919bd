"""Texts that clients want scored: on their way to an engine's loop, and waiting there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from ...engines.errors import ClosedError, SkipDecError
from ..requests.scoring import ScoreRequest
from ..schedule import ExitSchedule
from ..scheduling.client_queues import ClientQueues
from ..scheduling.running_batch import RunningBatch
from ..tokens.outputs import ScoreOutput


@dataclass(frozen=True)
class EngineScore:
    """A text that was checked, under the name that it has outside of the engine."""

    request_id: str
    request: ScoreRequest
    schedule: ExitSchedule
    deadline: float | None = None  # of time.monotonic, which the processes of a machine share


@dataclass(frozen=True)
class ScoreResult:
    """What became of a text: its scores, or why there are none."""

    request_id: str
    output: ScoreOutput | None = None
    error: Exception | None = None


class ScoreFuture:
    """The result of one text, for its client's event loop, in which it is made."""

    def __init__(self, request_id: str, cancel: Callable[[], None]) -> None:
        self.request_id = request_id
        self.loop = asyncio.get_running_loop()
        self._cancel = cancel
        self._result: asyncio.Future[ScoreOutput] = self.loop.create_future()

    async def output(self) -> ScoreOutput:
        """Wait for it; being cancelled meanwhile cancels the text. Raises what went wrong."""
        try:
            return await self._result
        except asyncio.CancelledError:
            self._cancel()
            raise

    def finish(self, output: ScoreOutput | None, error: Exception | None = None) -> None:
        """There it is, or what went wrong; in the loop's thread."""
        if self._result.done():  # its client has gone
            return
        if output is not None:
            self._result.set_result(output)
        elif error is not None:
            self._result.set_exception(error)

    def give_up(self, reason: str) -> None:
        """End it without scores, whatever its engine does."""
        self.finish(None, given_up(reason))


class ScoreQueue:
    """Texts that wait to be scored, all in the engine's thread; clients take turns, a text each.

    Scored and generated texts share the time (`BatchScoring`): the gap between two tokens grows by
    at most one scored text. A text waits for memory that running requests hold.
    """

    def __init__(self, engine: RunningBatch) -> None:
        self._engine = engine
        self._waiting = ClientQueues[str, EngineScore]()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, score: EngineScore) -> None:
        """Let a text wait."""
        self._waiting.add(score.request_id, score, score.request.client)

    def give_up(self, request_id: str, reason: str) -> list[ScoreResult]:
        """Take a text out, if it waits; ``reason`` is "deadline" if that is over."""
        if not self._waiting.discard(request_id):
            return []
        self._engine.scoring.drop()
        return [ScoreResult(request_id, error=given_up(reason))]

    def late(self, now: float) -> list[str]:
        """The texts whose deadline is over at ``now``."""
        return [
            one.request_id
            for one in self._waiting
            if one.deadline is not None and now > one.deadline
        ]

    @property
    def next(self) -> EngineScore | None:
        """The text whose turn it is, unless running requests are due or hold its memory."""
        if not self._waiting:
            return None
        engine, first = self._engine, next(iter(self._waiting))
        if not engine.is_busy:
            return first
        is_due = engine.scoring.is_due(first.request, running=engine.running_rows > 0)
        return first if is_due else None

    def run(self, score: EngineScore) -> ScoreResult:
        """Score the text that `next` is."""
        self._waiting.serve(score.request_id)
        try:
            output = self._engine.scoring.run(score.request, score.schedule)
        except SkipDecError as error:
            return ScoreResult(score.request_id, error=error)
        return ScoreResult(score.request_id, output)


def given_up(reason: str) -> Exception:
    """What a client is told whose text was not scored; ``reason`` is "deadline" or another."""
    if reason == "deadline":
        return TimeoutError("the deadline was over before the text was scored")
    return ClosedError("AsyncEngine", "the text was given up before it was scored")
