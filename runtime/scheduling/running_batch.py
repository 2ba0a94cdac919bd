"""RunningBatch: requests arrive at any time and run together, each as if it were alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from time import perf_counter

from ...engines.constants import integer
from ...engines.errors import ClosedError, SkipDecError, UsageError
from ..admission import parse_admission
from ..requests.request import Prompt, Request, prepare_request
from ..schedule import ExitSchedule
from ..stitching.protocol import StepRow
from ..stitching.slot_stitcher import SlotStitcher
from ..tokens.logits import StepLogits
from ..tokens.outputs import RequestOutput, StreamDelta
from ..tokens.sampling import SamplingParams
from .decoding import prompt_end
from .drafted_decoding import make_decoding
from .loaded_bundle import LoadedBundle, RunningBatchConfig
from .running_request import Row, RunningRequest
from .scheduler import Action, Chunk, Decode, Prefill, Scheduler, Wait
from .scoring import BatchScoring
from .stats import Counters, EngineStats

_LOGGER = logging.getLogger(__name__)

# After so many failed calls in a row the engines are not expected to recover.
_MAX_FAILURES = integer("max_failures")


class RunningBatch:
    """Requests that arrive at any time and run together, each at its own depth and schedule.

    >>> with generator.running_batch() as batch:
    ...     number = batch.add("The capital of France is", SamplingParams(max_tokens=8))
    ...     while batch.is_busy:
    ...         for delta in batch.step():
    ...             print(delta.request_index, delta.text)
    ...     output = batch.take(number)

    A request gets the tokens that it would get alone, whatever runs with it (except for rounding if
    products are float32). Its KV memory is reserved when it is admitted, so no running request is
    ever preempted. If the computation of one row fails (NaN logits), that row ends with
    finish_reason "error"; if an engine fails, all running rows do, and waiting requests go on. The
    third failure in a row is raised by `step`. After its ``with`` block a batch only returns
    results.

    Only one thread at a time may use it. `Generator.running_batch` makes one.
    """

    def __init__(
        self,
        loaded: LoadedBundle,
        slots: SlotStitcher,
        config: RunningBatchConfig,
    ) -> None:
        """Create an empty batch on ``slots``, which the holder of the engines closes.

        Raises UsageError for an invalid admission rule.
        """
        self._loaded = loaded
        self._slots = slots
        self._config = config
        self._decoding = make_decoding(loaded, slots, config)
        self._requests: dict[int, RunningRequest] = {}
        self._rows: list[Row] = []  # running, in order of admission
        self._next_number = self._next_row = 0
        self._failures_in_a_row = 0
        self._deltas: list[StreamDelta] = []  # of the present step
        self._step_end = 0.0
        self._counters = Counters.zero(loaded.model.num_layers)
        # Called with the numbers of requests that stop waiting, before their prompts run.
        self.on_admission: Callable[[Sequence[int]], None] = lambda numbers: None
        self.admits = True  # while False, no waiting request is admitted
        self.memory = slots.memory  # computes what requests need, in any thread
        self.limits = limits = slots.limits
        self._scheduler = Scheduler(
            limits.max_rows,
            limits.prefill_tokens,
            parse_admission(config.admission, on_device=loaded.engines.device is not None),
            self._fits,
            self._runs_in_chunks,
            fills_first=config.fills_first,
        )

    @cached_property
    def scoring(self) -> BatchScoring:
        """Scores texts between two steps; created on first use."""
        return BatchScoring(self._loaded, self._slots, self._counters)

    @property
    def running_rows(self) -> int:
        """The number of running rows."""
        return len(self._rows)

    @property
    def is_busy(self) -> bool:
        """True while anything runs or waits."""
        return self._scheduler.is_busy

    def add(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        schedule: str | ExitSchedule | None = None,
        client: str = "",
        draft: str | None = None,
    ) -> int:
        """Queue a request and return its number, which its deltas carry as ``request_index``.

        ``client`` names the sender. Clients take turns, one request each; all requests without a
        name belong to one client. With ``draft="off"`` this request's rows run without drafts,
        which changes their times, not their texts.

        Raises UsageError, ScheduleError, or CapacityError if the request could never run, before
        it is queued, and ClosedError as `step`.
        """
        loaded = self._loaded
        loaded.engines.require_held(self._slots)
        request, resolved = prepare_request(
            prompt,
            params,
            schedule,
            loaded.model,
            loaded.tokenizer,
            loaded.schedules,
            client=client,
            draft=draft,
            max_model_len=self.limits.max_positions,
        )
        request.require_possible(self.memory, resolved)
        return self.add_request(request, resolved)

    def add_request(self, request: Request, schedule: ExitSchedule) -> int:
        """Queue a prepared request and return its number, which replaces its index."""
        request = replace(request, index=self._next_number)
        return self.add_outputs(request, schedule, range(request.params.n), perf_counter())

    def add_outputs(
        self, request: Request, schedule: ExitSchedule, outputs: range, start: float
    ) -> int:
        """Queue some of a request's n completions; deltas carry the request's own index.

        ``start`` is the ``perf_counter`` time at which the caller began to wait.
        """
        number = self._next_number
        running = RunningRequest.create(
            self._loaded,
            self.memory,
            number,
            request,
            schedule,
            outputs=outputs,
            first_row=self._next_row,
            start=start,
            owner=request.client if self._config.prefixes == "client" else "",
        )
        self._next_number += 1
        self._next_row += len(outputs)
        self._requests[number] = running
        self._counters.submitted += 1
        self._scheduler.add(running)
        return number

    def step(self) -> list[StreamDelta]:
        """Run prompts, a part of one, or a step; the result is empty if nothing can run now.

        Raises ClosedError if the batch or its generator was closed, and the engines' error once
        they have failed three times in a row. Any other interruption, such as KeyboardInterrupt, is
        raised at once, after ending all running rows.
        """
        self._loaded.engines.require_held(self._slots)
        self._deltas = []
        action = self._scheduler.next_action(perf_counter())
        try:
            with self._loaded.engines.step():
                match action:
                    case Prefill(numbers):
                        self._prefill(numbers)
                    case Chunk():
                        self._chunk(action)
                    case Decode():
                        self._decode()
                    case Wait():
                        return []
        except BaseException as error:
            if self._config.failures == "raise" or isinstance(error, ClosedError):
                raise
            self._fail_all(str(error) or type(error).__name__, action)
            self._failures_in_a_row += 1
            if not isinstance(error, SkipDecError) or self._failures_in_a_row >= _MAX_FAILURES:
                raise
            _LOGGER.exception("an engine failed; running rows end, waiting requests go on")
        else:
            self._failures_in_a_row = 0
        return self._deltas

    def has_ended(self, number: int) -> bool:
        """Return whether all completions of a request have ended.

        Raises UsageError for a number that is unknown or was taken.
        """
        return self._known(number).is_finished

    def abort(self, number: int, reason: str | None = None) -> list[StreamDelta]:
        """End a request as cancelled, with ``reason`` as stop_reason, and free its slots.

        A request that is unknown or has ended is left alone.
        """
        request = self._requests.get(number)
        if request is None or request.is_finished:
            return []
        deltas = [row.abort(reason) for row in request.rows if row.finish_reason is None]
        self._scheduler.cancel(number)
        self._rows = [row for row in self._rows if row.request_number != number]
        self._release(request.rows)
        self._counters.aborted += 1
        return deltas

    def take(self, number: int) -> RequestOutput:
        """Return the result of a request that has ended, and forget it; raises as `remove`."""
        return self.remove(number).output()

    def remove(self, number: int) -> RunningRequest:
        """Return a request that has ended, and forget it.

        Raises UsageError for a number that is unknown, was taken, or still runs.
        """
        if not self._known(number).is_finished:
            raise UsageError("request", f"{number} has not ended")
        return self._requests.pop(number)

    def stats(self) -> EngineStats:
        """Return the numbers of running and waiting requests, and totals so far."""
        return self._counters.snapshot(
            requests=len(self._requests),
            running=len(self._rows),
            waiting=self._scheduler.num_waiting,
            reserved_bytes=self._slots.reserved_bytes,
            prefix_bytes=self._slots.prefix_bytes,
            limit_bytes=self._loaded.engines.pool.limit,
            draft_steps=self._decoding.draft_steps,
            drafting=self._decoding.drafting,
        )

    def _known(self, number: int) -> RunningRequest:
        if number not in self._requests:
            raise UsageError("request", f"{number} is unknown, or was taken")
        return self._requests[number]

    def _fits(self, requests: Sequence[RunningRequest]) -> bool:
        """Return whether there is KV memory to admit ``requests`` now."""
        if not self.admits:
            return False
        if self._runs_in_chunks(requests[0]):
            assert len(requests) == 1, "a prompt that runs in chunks runs alone"
            return self._slots.fits_in_chunks(requests[0].prompt)
        return self._slots.fits([request.prompt for request in requests])

    def _runs_in_chunks(self, request: RunningRequest) -> bool:
        is_long = request.prompt_length > self.limits.chunk_tokens
        return is_long or self._slots.keeps_prefix(request.prompt)

    def _announce(self, numbers: Sequence[int]) -> None:
        now = perf_counter()
        for number in numbers:
            self._counters.histograms.queue_seconds.observe(now - self._requests[number].start)
        self.on_admission(numbers)

    def _prefill(self, numbers: Sequence[int]) -> None:
        self._announce(numbers)
        requests = [self._requests[number] for number in numbers]
        start = perf_counter()
        logits = self._slots.prefill([request.prompt for request in requests])
        self._counters.count_prefill(perf_counter() - start)
        self._begin(requests, logits)

    def _chunk(self, chunk: Chunk) -> None:
        request = self._requests[chunk.number]
        if chunk.is_first:
            self._announce([chunk.number])
            self._counters.prefix_tokens += self._slots.begin_chunks(request.prompt)
        start = perf_counter()
        logits = self._slots.chunk(self.limits.chunk_tokens)
        self._counters.count_prefill(perf_counter() - start)
        if logits is not None:
            self._scheduler.prompt_ran()
            self._begin([request], logits)

    def _begin(self, requests: Sequence[RunningRequest], logits: StepLogits) -> None:
        """Sample the first token of each row; ``logits`` are those of the requests' prompts."""
        rows = [row for request in requests for row in request.rows]
        owners = [index for index, request in enumerate(requests) for _ in request.rows]
        self._counters.prompt_tokens += sum(request.prompt_length for request in requests)
        self._rows += rows
        fed = [prompt_end(row) for row in rows]
        self._accept(rows, fed, logits, owners)

    def _decode(self) -> None:
        clock = self._loaded.engines.clock
        start, begun, rows = perf_counter(), clock(), self._rows[:]
        fed = self._decoding.feed(rows)
        drafted, searching = perf_counter(), clock() - begun
        runs_ahead = self._slots.runs_ahead and self._scheduler.num_waiting == 0
        ahead = self._decoding.ahead(rows) if runs_ahead else []
        logits = self._slots.step(fed, ahead)
        if self._slots.has_run_ahead:
            start = self._step_end  # the device began this step no earlier
        self._step_end = end = perf_counter()
        self._counters.count_step([step.plan for step in fed], end - start)
        if any(len(step.tokens) > 1 for step in fed):
            self._counters.draft_seconds += drafted - start
        firsts = accumulate((len(step.tokens) for step in fed), initial=0)
        self._accept(rows, fed, logits, firsts)
        seconds = clock() - begun
        self._decoding.passed(fed, seconds, searching, is_first=self._slots.has_found_route)

    def _accept(
        self,
        rows: Sequence[Row],
        fed: Sequence[StepRow],
        logits: StepLogits,
        firsts: Iterable[int],
    ) -> None:
        """Draw the tokens after those fed, fail rows for which that fails, and remove ended rows.

        ``firsts`` has, for each row, the index in ``logits`` of its first token fed.
        """
        start, deltas = perf_counter(), self._deltas
        for row, step, first in zip(rows, fed, firsts, strict=False):
            before, num_deltas = len(row.token_ids), len(deltas)
            try:
                self._decoding.accept(row, step, logits, first, deltas)
            except Exception as error:
                if self._config.failures == "raise":
                    raise
                _LOGGER.exception("a row of request %d failed", row.request_number)
                deltas.append(row.fail(str(error)))
            written = len(row.token_ids) - before
            self._counters.generated_tokens += written
            held = sum(delta.drafted for delta in deltas[num_deltas:])
            self._counters.count_drafts(len(step.tokens) - 1, held)
            self._decoding.accepted(row, len(step.tokens) - 1, held)
            if written < len(step.tokens) and row.finish_reason is None:
                self._slots.truncate(row.number, row.num_positions)
        if ended := [row for row in rows if row.finish_reason is not None]:
            self._remove(ended)
        self._counters.sampling_seconds += perf_counter() - start

    def _remove(self, ended: Sequence[Row]) -> None:
        """Free the slots of rows that have ended, and count the requests that ended with them."""
        self._rows = [row for row in self._rows if row.finish_reason is None]
        for row in ended:
            self._scheduler.row_ended(row.request_number)
        for number in {row.request_number for row in ended}:
            request = self._requests[number]
            if request.is_finished:
                failed = any(row.finish_reason == "error" for row in request.rows)
                self._counters.failed += failed
                self._counters.finished += not failed
        self._release(ended)  # last, because a device may fail in it

    def _fail_all(self, reason: str, action: Action) -> None:
        """End all rows that run or were about to, because their slots may hold wrong values."""
        numbers = dict.fromkeys(row.request_number for row in self._rows)
        match action:
            case Prefill(begun):
                unfinished = (one for one in begun if not self._requests[one].is_finished)
                numbers |= dict.fromkeys(unfinished)
        if self._scheduler.in_chunks is not None:
            numbers[self._scheduler.in_chunks] = None
        for number in numbers:
            rows = self._requests[number].rows
            self._deltas += [row.fail(reason) for row in rows if row.finish_reason is None]
            self._scheduler.cancel(number)
            self._counters.failed += 1
        self._rows = []
        engines = self._loaded.engines
        with engines.unfreed():
            if engines.holds(self._slots):
                self._slots.reset()

    def _release(self, rows: Iterable[Row]) -> None:
        """Free the slots of rows while no other thread can free all slots."""
        with self._loaded.engines.unfreed():
            for row in rows:
                failed = row.finish_reason == "error"
                (self._slots.discard if failed else self._slots.release)(row.number)
