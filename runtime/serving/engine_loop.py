"""EngineLoop: steps a running batch in one thread and takes messages from other threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Protocol, cast

from ...engines.errors import SkipDecError
from ..requests.request import Request
from ..requests.score_request import ScoreRequest
from ..scheduling.running_batch import RunningBatch
from ..scheduling.scheduler import ClientQueues
from ..tokens.outputs import RequestOutput, ScoreOutput, StreamDelta
from .stream import ServedRequest, given_up


@dataclass(frozen=True)
class Cancellation:
    """A message that asks the engine to end a request with this stop_reason."""

    request_id: str
    reason: str


Message = ServedRequest | Cancellation


@dataclass(frozen=True)
class ScoreResult:
    """The scores of a text, or the error."""

    request_id: str
    output: ScoreOutput | None = None
    error: Exception | None = None


@dataclass(frozen=True)
class StepResult:
    """The result of a step: deltas by request_id, and the results of the requests that it ended.

    ``scored``: texts, of which one is scored between two steps.
    """

    deltas: list[tuple[str, StreamDelta]] = field(default_factory=list)
    ended: list[RequestOutput] = field(default_factory=list)
    scored: list[ScoreResult] = field(default_factory=list)


class StepSink(Protocol):
    """Receives the results of an `EngineLoop`, in its thread, which waits meanwhile."""

    def begin(self, request_ids: Sequence[str]) -> None:
        """These requests no longer wait: their prompts run next."""

    def step(self, result: StepResult) -> None:
        """A step has ended; there may be nothing in it."""


class EngineLoop:
    """Steps ``batch`` while it is busy; `send` and `stop` from any thread, `run` in one.

    Texts to score run between two steps; scored and generated texts share the time
    (`BatchScoring`): the gap between two tokens grows by at most one scored text. A text waits for
    memory that running requests hold.
    """

    def __init__(self, batch: RunningBatch, sink: StepSink) -> None:
        self._batch = batch
        self._sink = sink
        self._inbox: SimpleQueue[Message | None] = SimpleQueue()
        self._numbers: dict[str, int] = {}  # in the engine, of those that have not ended
        self._requests: dict[int, ServedRequest] = {}  # the same, by number
        self._texts = ClientQueues[str, ServedRequest]()  # to score
        self._step_start: float | None = None
        batch.on_admission = self._tell_begin

    @property
    def seconds_in_step(self) -> float:
        """Seconds that the current step has taken so far; 0.0 between steps."""
        start = self._step_start
        return 0.0 if start is None else monotonic() - start

    def send(self, message: Message) -> None:
        """Let a request wait in the engine, or end one, before the next step."""
        self._inbox.put(message)

    def stop(self) -> None:
        """Let `run` return after the step that runs; what has not ended is left as it is."""
        self._inbox.put(None)

    def run(self) -> None:
        """Step until `stop`. Raises what is no fault of one request, nor of one engine's call."""
        try:
            while self._take_in():
                self._step_start = monotonic()
                deltas = self._batch.step()
                self._step_start = None
                self._post(deltas)
                self._score()
        finally:
            self._step_start = None

    def _take_in(self) -> bool:
        """Take what was sent, waiting for it where there is nothing to do; False to stop."""
        while True:
            try:
                message = self._inbox.get(block=not (self._batch.is_busy or self._texts))
            except Empty:
                break
            match message:
                case None:
                    return False
                case ServedRequest(request=Request() as request):
                    number = self._batch.add_request(request, message.schedule)
                    self._numbers[message.request_id] = number
                    self._requests[number] = message
                case ServedRequest():
                    self._texts.add(message.request_id, message, message.request.client)
                case Cancellation():
                    self._end_early(message.request_id, message.reason)
        self._end_late()
        return True

    def _end_early(self, request_id: str, reason: str) -> None:
        number = self._numbers.get(request_id)
        if number is not None:
            self._post(self._batch.abort(number, reason))
        elif self._texts.discard(request_id):
            self._batch.scoring.drop()
            result = ScoreResult(request_id, error=given_up(reason))
            self._sink.step(StepResult(scored=[result]))

    def _end_late(self) -> None:
        """End requests whose deadline is over."""
        now = monotonic()
        requests = (*self._requests.values(), *self._texts)
        for request_id in [one.request_id for one in requests if one.is_late(now)]:
            self._end_early(request_id, "deadline")

    def _score(self) -> None:
        """Score the next text, unless what runs is owed time or holds its memory."""
        if not self._texts:
            return
        batch, asked = self._batch, next(iter(self._texts))
        text = cast(ScoreRequest, asked.request)
        if batch.is_busy and not batch.scoring.is_due(text, running=batch.running_rows > 0):
            return
        self._sink.begin([asked.request_id])
        self._step_start = monotonic()
        self._texts.serve(asked.request_id)
        try:
            result = ScoreResult(asked.request_id, batch.scoring.run(text, asked.schedule))
        except SkipDecError as error:
            result = ScoreResult(asked.request_id, error=error)
        self._step_start = None
        self._sink.step(StepResult(scored=[result]))

    def _tell_begin(self, numbers: Sequence[int]) -> None:
        self._sink.begin([self._requests[number].request_id for number in numbers])

    def _post(self, deltas: Sequence[StreamDelta]) -> None:
        """Hand a step's deltas, and the results of what it ended, to the sink."""
        named = [(self._requests[delta.request_index].request_id, delta) for delta in deltas]
        numbers = dict.fromkeys(
            delta.request_index for delta in deltas if delta.finish_reason is not None
        )
        ended = [self._take(number) for number in numbers if self._batch.has_ended(number)]
        self._sink.step(StepResult(named, ended))

    def _take(self, number: int) -> RequestOutput:
        request = self._requests.pop(number)
        del self._numbers[request.request_id]
        return replace(self._batch.take(number), request_id=request.request_id)


def require_possible(batch: RunningBatch, asked: ServedRequest) -> None:
    """Raise CapacityError or UsageError for a request that ``batch`` could never run."""
    match asked.request:
        case Request() as request:
            request.require_possible(batch.memory, asked.schedule)
        case ScoreRequest() as text:
            batch.scoring.check(text)
