"""Call: requests that are all known in advance, run to their ends in a batch of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

from ...engines.errors import CapacityError, UsageError, shown
from ..requests.request import Request
from ..schedule import ExitSchedule
from ..tokens.outputs import CompletionOutput, RequestOutput, StreamDelta
from .loaded_bundle import LoadedBundle
from .running_batch import RunningBatch
from .running_request import RunningRequest, request_output

_LOOKAHEAD = 3  # rows queued per slot, so that prompts of similar length can share a call

_Step = tuple[list[StreamDelta], list[RunningRequest]]


@dataclass(frozen=True)
class _Part:
    """Completions of a request, by their indices, that run side by side from one prompt."""

    request: Request
    schedule: ExitSchedule
    outputs: range


class Call:
    """All completions of ``requests``, request i at ``schedules[i]``.

    The longest requests run first, so that prompts of similar length share a call and the longest
    text does not come last. A request whose n completions don't fit side by side runs in parts,
    each from its own prompt.

    Raises CapacityError, with the numbers, if one completion alone does not fit.
    """

    def __init__(
        self,
        loaded: LoadedBundle,
        requests: Sequence[Request],
        schedules: Sequence[ExitSchedule],
        draft: str | None = None,
        *,
        cancelled: Callable[[], bool],
        on_progress: Callable[[Sequence[StreamDelta]], None] | None = None,
    ) -> None:
        """Check that all requests can run; nothing runs before `run` or `steps`.

        ``draft`` overrides the drafts with which the bundle was opened. ``on_progress`` receives
        the deltas of each step of `run`. Raises UsageError for an invalid draft, and for a
        ``cancelled`` or ``on_progress`` that can't be called.
        """
        _require_function("cancelled", cancelled, "one that returns True to stop")
        if on_progress is not None:
            _require_function("on_progress", on_progress, "one of each step's deltas, or None")
        self._cancelled, self._on_progress = cancelled, on_progress
        config = loaded.call_config.updated(draft=loaded.drafts.resolve(draft))
        loaded.drafts.warn_of_unused(config.draft, schedules)
        self._requests = requests
        self._schedules = schedules
        self._engines = loaded.engines
        self._slots = loaded.call_slots(requests, config.draft)
        self._batch = RunningBatch(loaded, self._slots, config)
        self._start = perf_counter()
        parts = [
            part
            for request, schedule in zip(requests, schedules, strict=True)
            for part in self._parts(request, schedule)
        ]
        self._waiting = deque(
            sorted(
                parts,
                key=lambda part: (-len(part.request.prompt_token_ids), -part.request.max_tokens),
            )
        )
        self._running: dict[int, int] = {}  # number in the batch -> rows

    def run(self) -> list[RequestOutput]:
        """Run all requests and return their results in order; see `steps`."""
        completions: dict[int, list[CompletionOutput]] = {}
        for deltas, ended in self.steps():
            for part in ended:
                done = completions.setdefault(part.request.index, [])
                done += [row.output() for row in part.rows]
            if self._on_progress is not None:
                self._on_progress(deltas)
        return [
            request_output(
                request,
                schedule,
                tuple(sorted(completions[request.index], key=lambda one: one.index)),
            )
            for request, schedule in zip(self._requests, self._schedules, strict=True)
        ]

    def steps(self) -> Iterator[_Step]:
        """Yield the deltas of each step, and the parts of requests that have ended.

        ``cancelled`` is called between steps; once it returns true, unfinished completions end with
        "abort". Raises what an engine or a sampler raises.
        """
        with self._engines.hold(self._slots):
            while self._running or self._waiting:
                if self._cancelled():
                    yield from self._abort()
                    return
                self._fill()
                deltas = self._batch.step()
                has_ended = any(delta.finish_reason is not None for delta in deltas)
                yield deltas, self._remove_ended() if has_ended else []

    def _parts(self, request: Request, schedule: ExitSchedule) -> Iterator[_Part]:
        rows = self._rows_that_fit(request, schedule)
        for start in range(0, request.params.n, rows):
            yield _Part(request, schedule, range(start, min(start + rows, request.params.n)))

    def _rows_that_fit(self, request: Request, schedule: ExitSchedule) -> int:
        memory = self._slots.memory
        for rows in range(min(request.params.n, memory.limits.max_rows), 1, -1):
            try:
                request.require_memory(memory, schedule, rows, "")
            except CapacityError:
                continue
            return rows
        request.require_memory(memory, schedule, 1, f"prompt {request.index}")
        return 1

    def _fill(self) -> None:
        """Queue as many parts as the batch looks ahead."""
        most = _LOOKAHEAD * self._batch.limits.max_rows
        while self._waiting and sum(self._running.values()) < most:
            self._add(self._waiting.popleft())

    def _add(self, part: _Part) -> None:
        number = self._batch.add_outputs(part.request, part.schedule, part.outputs, self._start)
        self._running[number] = len(part.outputs)

    def _remove_ended(self) -> list[RunningRequest]:
        ended = [number for number in self._running if self._batch.has_ended(number)]
        for number in ended:
            del self._running[number]
        return [self._batch.remove(number) for number in ended]

    def _abort(self) -> Iterator[_Step]:
        """End the running parts, then the waiting ones, without running anything."""
        while self._running or self._waiting:
            if not self._running:
                self._add(self._waiting.popleft())
            deltas = [delta for number in self._running for delta in self._batch.abort(number)]
            yield deltas, self._remove_ended()


def _require_function(name: str, value: object, allowed: str) -> None:
    """Raise UsageError unless ``value`` can be called."""
    if not callable(value):
        raise UsageError(name, f"is {shown(value)}; allowed: a function, {allowed}")
