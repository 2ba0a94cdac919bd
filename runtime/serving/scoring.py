"""Texts that clients want scored: on their way to an engine's loop, and waiting there."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

from ...engines.errors import ClosedError, SkipDecError
from ..requests.request import ScoreRequest
from ..scheduling.running_batch import RunningBatch
from ..scheduling.scheduler import ClientQueues
from ..tokens.outputs import RequestOutput, ScoreOutput
from .open_request import OpenRequest, ServedRequest


@dataclass(frozen=True)
class ScoreResult:
    """The scores of a text, or the error."""

    request_id: str
    output: ScoreOutput | None = None
    error: Exception | None = None


class ScoreFuture(OpenRequest):
    """The scores of one text, awaited in the event loop in which this was made."""

    def __init__(self, asked: ServedRequest) -> None:
        super().__init__(asked)
        self._result: asyncio.Future[ScoreOutput] = self.loop.create_future()

    @property
    def outstanding_tokens(self) -> int:
        """The text's tokens while it waits."""
        return 0 if self.has_begun else len(cast(ScoreRequest, self.asked.request).fed)

    async def output(self) -> ScoreOutput:
        """Wait for the scores. Cancelling the wait cancels the request."""
        try:
            return await self._result
        except asyncio.CancelledError:
            self.cancel_engine("cancelled")
            raise

    def finish(
        self, output: RequestOutput | ScoreOutput | None, error: Exception | None = None
    ) -> None:
        """Take the scores or the error, unless the client has gone."""
        self.stop_timer()
        if self._result.done():
            return
        if isinstance(output, ScoreOutput):
            self._result.set_result(output)
        elif error is not None:
            self._result.set_exception(error)

    def give_up(self, reason: str) -> None:
        """End the request without scores, whatever its engine does."""
        self.finish(None, given_up(reason))


class ScoreQueue:
    """Texts that wait to be scored, all in the engine's thread; clients take turns, a text each.

    Scored and generated texts share the time (`BatchScoring`): the gap between two tokens grows by
    at most one scored text. A text waits for memory that running requests hold.
    """

    def __init__(self, engine: RunningBatch) -> None:
        self._engine = engine
        self._waiting = ClientQueues[str, ServedRequest]()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, score: ServedRequest) -> None:
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
    def next(self) -> ServedRequest | None:
        """The text whose turn it is, unless what runs is owed time or holds its memory."""
        if not self._waiting:
            return None
        engine, first = self._engine, next(iter(self._waiting))
        if not engine.is_busy:
            return first
        text = cast(ScoreRequest, first.request)
        is_due = engine.scoring.is_due(text, running=engine.running_rows > 0)
        return first if is_due else None

    def run(self, score: ServedRequest) -> ScoreResult:
        """Score the text that `next` is."""
        self._waiting.serve(score.request_id)
        try:
            text = cast(ScoreRequest, score.request)
            output = self._engine.scoring.run(text, score.schedule)
        except SkipDecError as error:
            return ScoreResult(score.request_id, error=error)
        return ScoreResult(score.request_id, output)


def given_up(reason: str) -> Exception:
    """Return the error of a text that was not scored; ``reason`` may be "deadline"."""
    if reason == "deadline":
        return TimeoutError("the deadline was over before the text was scored")
    return ClosedError("AsyncEngine", "the text was given up before it was scored")
