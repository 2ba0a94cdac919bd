"""Engine: requests come at any time and run together, each as if it were alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from time import perf_counter

from ...engines.errors import ClosedError, SkipDecError, UsageError
from ...engines.memory import Array
from ..requests.prompts import Prompt
from ..requests.request import Request, make_request
from ..schedule import ExitSchedule
from ..tokens.logits import HostLogits, StepLogits
from ..tokens.outputs import RequestOutput, StreamDelta
from ..tokens.sampling import SamplingParams
from .admission import parse_admission
from .histogram import EngineHistograms
from .job import RunningRequest, RunningRow
from .parts import EngineConfig, EngineParts
from .room import Room
from .scheduler import Action, Chunk, Decode, Job, Prefill, Scheduler, Wait
from .scoring import EngineScoring
from .stats import Counters, EngineStats
from .work import Work

_LOGGER = logging.getLogger(__name__)

_MOST_FAILURES = 3  # calls in a row: then engines won't recover


def _tell_nobody(numbers: Sequence[int]) -> None:
    pass


class Engine:
    """Requests that come at any time, run together, each at its own position, depth and schedule.

    >>> with generator.engine() as engine:
    ...     number = engine.add("The capital of France is", SamplingParams(max_tokens=8))
    ...     while engine.is_busy:
    ...         for delta in engine.step():
    ...             print(delta.request_index, delta.text)
    ...     output = engine.take(number)

    A request's tokens are those that it has alone, whatever runs beside it (rounding aside where
    products are float32). What it needs of KV memory is reserved when it is let in, so that nothing
    that runs is ever put off. If a row's own computation fails (NaN logits), that row ends with
    finish_reason "error"; if an engine fails, all rows that run do, and those that wait go on; at
    the third time in a row `step` raises.

    One thread at a time. Made by `Generator.engine`.
    """

    def __init__(self, parts: EngineParts, config: EngineConfig) -> None:
        """Raises UsageError for an admission that is none."""
        self._parts = parts
        self._config = config
        self._requests: dict[int, RunningRequest] = {}
        self._rows: list[RunningRow] = []  # that run, in order of admission
        # Told the numbers of requests that stop waiting, before their prompts run.
        self.on_admission: Callable[[Sequence[int]], None] = _tell_nobody
        num_layers = parts.model.num_layers
        self._counters = Counters([0] * num_layers, [0] * num_layers, EngineHistograms(num_layers))
        self.scoring = EngineScoring(parts, self._counters)
        self._next_number = self._next_row = 0
        self._failures_in_a_row = 0
        self._in_chunks: int | None = None  # the request whose prompt last ran in chunks
        self.room = Room(parts, config)
        self._work = Work(parts, self._counters)
        self._scheduler = Scheduler(
            parts.max_rows,
            config.max_prefill_tokens,
            parse_admission(config.admission, on_device=parts.engines.device is not None),
            self._fits,
            kept_tokens=self._kept_tokens,
            max_chunk_tokens=self.room.limits.max_chunk_tokens,
            fills_first=config.fills_first,
        )

    @property
    def max_rows(self) -> int:
        """Rows that run at once at most."""
        return self._parts.max_rows

    @property
    def running_rows(self) -> int:
        """Rows that run."""
        return len(self._rows)

    @property
    def is_busy(self) -> bool:
        """Whether anything runs or waits."""
        return self._scheduler.is_busy

    def add(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        schedule: str | ExitSchedule | None = None,
        client: str = "",
    ) -> int:
        """Let a request wait and return its number, which its deltas carry as ``request_index``.

        ``client``: any name of whoever asks. Clients take turns, a request each; requests without
        a name are those of one client.

        Raises, before it is queued, UsageError, ScheduleError, or CapacityError if it could never
        run.
        """
        return self.add_request(*self.prepare(prompt, params, schedule, client))

    def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams | None,
        schedule: str | ExitSchedule | None,
        client: str = "",
    ) -> tuple[Request, ExitSchedule]:
        """Make and check what `add_request` takes; raises what ``add`` does. From any thread."""
        parts = self._parts
        request = make_request(
            0, prompt, params or SamplingParams(), parts.model, parts.tokenizer, "prompt", client
        )
        resolved = parts.schedules.resolve(schedule, request.max_tokens)
        self.room.limits.require_possible(request, resolved)
        return request, resolved

    def add_request(self, request: Request, schedule: ExitSchedule) -> int:
        """``add`` of what was prepared; its index is replaced by the number."""
        request = replace(request, index=self._next_number)
        return self.add_outputs(request, schedule, range(request.params.n), perf_counter())

    def add_outputs(
        self, request: Request, schedule: ExitSchedule, outputs: range, start: float
    ) -> int:
        """Add some of a prepared request's n completions; deltas carry its own index.

        ``start``: when its caller began to wait, of ``perf_counter``.
        """
        parts, number = self._parts, self._next_number
        running = RunningRequest.of(
            number,
            request,
            schedule,
            outputs=outputs,
            first_row=self._next_row,
            layout=parts.layout,
            model=parts.model,
            tokenizer=parts.tokenizer,
            start=start,
            owner=request.client if self._config.prefixes == "client" else "",
        )
        self._next_number += 1
        self._next_row += len(outputs)
        self._requests[number] = running
        self._counters.submitted += 1
        self._scheduler.add(
            Job(number, len(request.prompt_token_ids), len(outputs), request.client)
        )
        return number

    def step(self) -> list[StreamDelta]:
        """Do what is next: prompts, a part of one, or a step. Empty if nothing can be done now.

        Raises ClosedError if the generator was closed, and what an engine raises at the third call
        in a row in which one fails.
        """
        action = self._scheduler.next_action(perf_counter())
        self._parts.engines.require_usable()
        try:
            deltas = self._do(action)
        except ClosedError:
            raise
        except SkipDecError as error:
            self._failures_in_a_row += 1
            if self._config.failures == "raise" or self._failures_in_a_row >= _MOST_FAILURES:
                raise
            self._parts.engines.require_usable()
            _LOGGER.exception("an engine failed; what runs ends, what waits goes on")
            return self._fail_all(str(error), action)
        self._failures_in_a_row = 0
        return deltas

    def has_ended(self, number: int) -> bool:
        """Whether all completions of a request, that was not taken yet, have ended."""
        return self._requests[number].is_finished

    def abort(self, number: int, reason: str | None = None) -> list[StreamDelta]:
        """End a request as cancelled, with ``reason`` as stop_reason; its slots are free at once.

        Nothing happens to one that is unknown or has ended.
        """
        request = self._requests.get(number)
        if request is None or request.is_finished:
            return []
        deltas = [
            row.sequence.abort(reason) for row in request.rows if row.sequence.finish_reason is None
        ]
        self._scheduler.cancel(number)
        self._rows = [row for row in self._rows if row not in request.rows]
        for row in request.rows:
            self._parts.slots.release(row.number)
        self._counters.aborted += 1
        return deltas

    def take(self, number: int) -> RequestOutput:
        """The results of a request that has ended, which the engine then forgets.

        Raises UsageError for a number that is unknown, was taken, or still runs.
        """
        request = self._requests.get(number)
        if request is None or not request.is_finished:
            raise UsageError(
                "request", f"{number} {'is unknown' if request is None else 'has not ended'}"
            )
        return self._requests.pop(number).output()

    def stats(self) -> EngineStats:
        """What runs, waits and was done so far."""
        counters, pool = self._counters, self._parts.engines.pool
        values = vars(counters) | {
            "layer_calls": tuple(counters.layer_calls),
            "layer_rows": tuple(counters.layer_rows),
            "histograms": counters.histograms.snapshot(),
        }
        return EngineStats(
            requests=len(self._requests),
            running=len(self._rows),
            waiting=self._scheduler.num_waiting,
            reserved_bytes=self._parts.slots.reserved_bytes,
            prefix_bytes=self._parts.slots.prefix_bytes,
            limit_bytes=pool.limit or 0,
            **values,
        )

    def _do(self, action: Action) -> list[StreamDelta]:
        match action:
            case Prefill(numbers):
                return self._prefill(numbers)
            case Chunk():
                return self._chunk(action)
            case Decode():
                return self._decode()
            case Wait():
                return []

    def _fits(self, jobs: Sequence[Job]) -> bool:
        return self.room.has([self._requests[job.number].prompt for job in jobs])

    def _kept_tokens(self, job: Job) -> int:
        return self.room.kept_tokens(self._requests[job.number].prompt)

    def _admit(self, numbers: Sequence[int]) -> None:
        now = perf_counter()
        for number in numbers:
            arrival = self._requests[number].arrival
            self._counters.histograms.queue_seconds.observe(now - arrival)
        self.on_admission(numbers)

    def _prefill(self, numbers: Sequence[int]) -> list[StreamDelta]:
        self._admit(numbers)
        requests = [self._requests[number] for number in numbers]
        return self._begin(requests, self._work.prefill([request.prompt for request in requests]))

    def _chunk(self, chunk: Chunk) -> list[StreamDelta]:
        request = self._requests[chunk.number]
        if self._in_chunks != chunk.number:
            self._in_chunks = chunk.number
            self._admit([chunk.number])
            self._work.begin_chunks(request.prompt)
        logits = self._work.chunk(chunk.stop)
        return [] if logits is None else self._begin([request], logits)

    def _begin(self, requests: Sequence[RunningRequest], logits: Array) -> list[StreamDelta]:
        """Sample the first token of each row; ``logits`` float32 [requests, V]."""
        rows = [row for request in requests for row in request.rows]
        row_logits = [logits[index] for index, request in enumerate(requests) for _ in request.rows]
        depths = [
            request.schedule.prompt_budget(
                len(request.prompt.tokens) - 1, len(request.prompt.tokens)
            )
            for request in requests
            for _ in request.rows
        ]
        self._counters.prompt_tokens += sum(len(request.prompt.tokens) for request in requests)
        self._rows += rows
        return self._accept(rows, HostLogits(row_logits), depths, None)

    def _decode(self) -> list[StreamDelta]:
        start, rows = perf_counter(), self._rows[:]
        steps = [row.step_row() for row in rows]
        logits = self._work.step(steps)
        return self._accept(rows, logits, [len(step.plan) for step in steps], start)

    def _accept(
        self,
        rows: Sequence[RunningRow],
        logits: StepLogits,
        depths: Sequence[int],
        step_start: float | None,
    ) -> list[StreamDelta]:
        """Sample a token for each row; those that end leave."""
        start = perf_counter()
        deltas = []
        for index, (row, depth) in enumerate(zip(rows, depths, strict=True)):
            try:
                token = logits.sample(index, row.sequence.sampler)
                deltas.append(row.sequence.accept(token, depth))
                row.sequence.record_time(step_start)
            except Exception as error:
                if self._config.failures == "raise":
                    raise
                _LOGGER.exception("a row of request %d failed", row.request)
                deltas.append(row.sequence.fail(str(error)))
        self._counters.generated_tokens += len(rows)
        self._leave(row for row in rows if row.sequence.finish_reason is not None)
        self._counters.sampling_seconds += perf_counter() - start
        return deltas

    def _leave(self, rows: Iterable[RunningRow]) -> None:
        ended = list(rows)
        if not ended:
            return
        numbers = {row.number for row in ended}
        self._rows = [row for row in self._rows if row.number not in numbers]
        for row in ended:
            self._parts.slots.release(row.number)
            self._scheduler.row_ended(row.request)
        for number in {row.request for row in ended}:
            request = self._requests[number]
            if request.is_finished:
                failed = any(row.sequence.finish_reason == "error" for row in request.rows)
                self._counters.failed += failed
                self._counters.finished += not failed

    def _fail_all(self, reason: str, action: object) -> list[StreamDelta]:
        """End all rows that run, or were about to: what their slots hold may be wrong."""
        rows = list(self._rows)
        numbers: tuple[int, ...] = ()
        match action:
            case Prefill(numbers):
                pass
            case Chunk(number):
                numbers = (number,)
        for number in numbers:
            rows += [row for row in self._requests[number].rows if row not in rows]
        deltas = [row.sequence.fail(reason) for row in rows if row.sequence.finish_reason is None]
        for number in {row.request for row in rows}:
            self._scheduler.cancel(number)
            self._counters.failed += 1
        self._rows = []
        self._parts.slots.reset()
        return deltas
