"""EngineLoop: steps a running batch in one thread and takes messages from other threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from time import monotonic, perf_counter
from typing import cast

from ...engines.errors import SkipDecError
from ..requests.request import Request
from ..requests.score_request import ScoreRequest
from ..scheduling.running_batch import RunningBatch
from ..scheduling.scheduler import ClientQueues
from ..tokens.outputs import RequestOutput, StreamDelta
from .messages import (
    Begun,
    Cancellation,
    FromEngine,
    Refused,
    ServedRequest,
    StepResult,
    ToEngine,
    given_up,
)


class EngineLoop:
    """Steps ``batch`` while it is busy; call `send` and `stop` from any thread, `run` in one.

    ``post`` receives the progress and results of requests, in the loop's thread, which waits for
    it. Texts to score run between two steps; scored and generated texts share the time
    (`BatchScoring`), so that the gap between two tokens grows by at most one scored text. A text
    may have to wait for memory that running requests hold; then no further request begins.
    """

    def __init__(self, batch: RunningBatch, post: Callable[[FromEngine], None]) -> None:
        self._batch = batch
        self._num_layers = batch.memory.num_layers
        self._post = post
        self._inbox: SimpleQueue[ToEngine | None] = SimpleQueue()
        self._numbers: dict[str, int] = {}  # in the batch, of requests that have not ended
        self._requests: dict[int, ServedRequest] = {}  # the same requests by number
        self._texts = ClientQueues[str, tuple[ServedRequest, float]]()  # to score, with arrival
        batch.on_admission = self._post_begin

    def require_possible(self, served: ServedRequest) -> None:
        """Raise CapacityError, UsageError or ScheduleError for a request that could never run."""
        schedule = served.exit_schedule(self._num_layers)
        match served.request:
            case Request() as request:
                request.require_possible(self._batch.memory, schedule)
            case ScoreRequest() as text:
                self._batch.scoring.check(text)

    def send(self, message: ToEngine) -> None:
        """Hand over a request that `require_possible` accepted, or a cancellation."""
        self._inbox.put(message)

    def stop(self) -> None:
        """Let `run` return after the current step; unfinished requests are left as they are."""
        self._inbox.put(None)

    def run(self) -> None:
        """Step until `stop`. Raises errors that are not limited to a request or an engine call."""
        while self._take_in():
            self._post_step(self._batch.step())
            self._score()

    def _take_in(self) -> bool:
        """Take all messages, waiting for one if there is nothing else to do; False means stop."""
        while True:
            try:
                message = self._inbox.get(block=not (self._batch.is_busy or self._texts))
            except Empty:
                break
            match message:
                case None:
                    return False
                case ServedRequest(request=Request() as request):
                    schedule = message.exit_schedule(self._num_layers)
                    try:
                        number = self._batch.add_request(request, schedule)
                    except SkipDecError as error:
                        self._post(Refused.of(error, message.request_id))
                        continue
                    except MemoryError as error:  # concerns only this request
                        short = SkipDecError("engine", f"has no memory for the request ({error})")
                        self._post(Refused.of(short, message.request_id))
                        continue
                    self._numbers[message.request_id] = number
                    self._requests[number] = message
                case ServedRequest():
                    waiting = message, perf_counter()
                    self._texts.add(message.request_id, waiting, message.request.client)
                case Cancellation():
                    self._end_early(message.request_id, message.reason)
        self._end_late()
        return True

    def _end_early(self, request_id: str, reason: str) -> None:
        number = self._numbers.get(request_id)
        if number is not None:
            self._post_step(self._batch.abort(number, reason))
        elif self._texts.discard(request_id):
            self._batch.scoring.drop()
            self._post(Refused.of(given_up(reason), request_id))

    def _end_late(self) -> None:
        """End requests whose deadline has passed."""
        now = monotonic()
        requests = (*self._requests.values(), *(served for served, _ in self._texts))
        for request_id in [one.request_id for one in requests if one.is_late(now)]:
            self._end_early(request_id, "deadline")

    def _score(self) -> None:
        """Score the next text, unless running requests are owed time or hold its memory."""
        batch = self._batch
        batch.admits = True
        if not self._texts:
            return
        served, start = next(iter(self._texts))
        text, name = cast(ScoreRequest, served.request), served.request_id
        if batch.is_busy:
            if not batch.scoring.is_due(running=batch.running_rows > 0):
                return
            batch.admits = batch.scoring.fits(text)  # else others would take the freed memory
            if not batch.admits:
                return
        self._post(Begun((name,)))
        self._texts.serve(name)
        try:
            scores = batch.scoring.run(text, served.exit_schedule(self._num_layers), start)
        except SkipDecError as error:
            self._post(Refused.of(error, name))
        else:
            self._post(StepResult(scored=[(name, scores)]))

    def _post_begin(self, numbers: Sequence[int]) -> None:
        self._post(Begun(tuple(self._requests[number].request_id for number in numbers)))

    def _post_step(self, deltas: Sequence[StreamDelta]) -> None:
        """Post a step's deltas, and the results of the requests that it ended."""
        named = [(self._requests[delta.request_index].request_id, delta) for delta in deltas]
        numbers = dict.fromkeys(
            delta.request_index for delta in deltas if delta.finish_reason is not None
        )
        ended = [self._take(number) for number in numbers if self._batch.has_ended(number)]
        self._post(StepResult(named, ended))

    def _take(self, number: int) -> RequestOutput:
        request = self._requests.pop(number)
        del self._numbers[request.request_id]
        return replace(self._batch.take(number), request_id=request.request_id)
