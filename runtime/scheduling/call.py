"""Requests that are all known: a call of `Generator.generate`, in an engine of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

from ...engines.errors import CapacityError
from ..requests.request import Request
from ..requests.step import Step
from ..schedule import ExitSchedule
from ..tokens.outputs import CompletionOutput
from .engine import Engine

_FORESIGHT = 3  # times the slots: rows that the engine knows of, to find prompts of like length


@dataclass(frozen=True)
class _Part:
    """Completions of one request that run from one prompt."""

    request: Request
    schedule: ExitSchedule
    outputs: range


class Call:
    """All completions of ``requests`` in ``engine``, request i at ``schedules[i]``.

    Longest first: prompts of like length share a call, and what takes longest does not come last.
    A request whose n completions don't fit side by side runs in parts, each from its own prompt.

    Raises CapacityError, with the numbers, if one completion alone does not fit.
    """

    def __init__(
        self, engine: Engine, requests: Sequence[Request], schedules: Sequence[ExitSchedule]
    ) -> None:
        self._engine = engine
        self._start = perf_counter()
        parts = [
            part
            for request, schedule in zip(requests, schedules, strict=True)
            for part in self._cut(request, schedule)
        ]
        self._to_come = deque(
            sorted(
                parts,
                key=lambda part: (-len(part.request.prompt_token_ids), -part.request.max_tokens),
            )
        )
        self._inside: dict[int, _Part] = {}  # in the engine, by number

    def steps(self, cancelled: Callable[[], bool]) -> Iterator[Step]:
        """Run until all have ended, a step as it is asked for.

        ``cancelled`` is asked between steps; once true, unfinished completions end with "abort".
        Raises what an engine or a sampler raises.
        """
        while self._inside or self._to_come:
            if cancelled():
                yield from self._aborted()
                return
            self._feed()
            deltas = self._engine.step()
            has_ended = any(delta.finish_reason is not None for delta in deltas)
            yield Step(deltas, self._take_ended() if has_ended else [])

    def _cut(self, request: Request, schedule: ExitSchedule) -> Iterator[_Part]:
        rows = self._rows_that_fit(request, schedule)
        for start in range(0, request.params.n, rows):
            yield _Part(request, schedule, range(start, min(start + rows, request.params.n)))

    def _rows_that_fit(self, request: Request, schedule: ExitSchedule) -> int:
        for rows in range(min(request.params.n, self._engine.max_rows), 1, -1):
            try:
                self._engine.room.limits.require_memory(request, schedule, rows, "")
            except CapacityError:
                continue
            return rows
        self._engine.room.limits.require_memory(request, schedule, 1, f"prompt {request.index}")
        return 1

    def _feed(self) -> None:
        rows = sum(len(part.outputs) for part in self._inside.values())
        while self._to_come and rows < _FORESIGHT * self._engine.max_rows:
            part = self._to_come.popleft()
            self._add(part)
            rows += len(part.outputs)

    def _add(self, part: _Part) -> int:
        number = self._engine.add_outputs(part.request, part.schedule, part.outputs, self._start)
        self._inside[number] = part
        return number

    def _take_ended(self) -> list[tuple[int, CompletionOutput]]:
        ended = [number for number in self._inside if self._engine.has_ended(number)]
        taken = [(self._inside.pop(number), self._engine.take(number)) for number in ended]
        return [
            (part.request.index, completion)
            for part, output in taken
            for completion in output.outputs
        ]

    def _aborted(self) -> Iterator[Step]:
        """End those inside, then those to come, without running anything."""
        while self._inside or self._to_come:
            if not self._inside:
                self._add(self._to_come.popleft())
            deltas = [delta for number in self._inside for delta in self._engine.abort(number)]
            yield Step(deltas, self._take_ended())
