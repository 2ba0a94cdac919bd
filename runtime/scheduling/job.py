"""One request inside an engine: its rows and what they have cost."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...engines.manifest import ModelSpec
from ..kv.layout import KVLayout
from ..kv.reservation import Reservation
from ..requests.planning import Row
from ..requests.request import Request
from ..requests.sequence import RunningSequence
from ..requests.step import ranges_of
from ..schedule import ExitSchedule
from ..schedule.text import format_schedule
from ..stitching.prompt_rows import PromptRow
from ..stitching.slots import StepRow
from ..tokens.outputs import CompletionOutput, RequestOutput
from ..tokens.tokenizer import Tokenizer


@dataclass
class RunningRow:
    """One completion: the row's number for the stitcher, its request's, and its sequence."""

    number: int
    request: int
    sequence: RunningSequence
    schedule: ExitSchedule

    def step_row(self) -> StepRow:
        """The step that feeds its last token back."""
        tokens = self.sequence.token_ids
        return StepRow(
            self.number,
            tokens[-1],
            self.sequence.num_positions,
            self.schedule.plan(len(tokens) - 1),
        )


@dataclass
class RunningRequest:
    """A request, its number in the engine, its schedule, and one row a completion."""

    number: int
    request: Request
    schedule: ExitSchedule
    rows: list[RunningRow]
    prompt: PromptRow
    arrival: float  # when its caller began to wait, of perf_counter

    @classmethod
    def of(
        cls,
        number: int,
        request: Request,
        schedule: ExitSchedule,
        *,
        outputs: range,
        first_row: int,
        layout: KVLayout,
        model: ModelSpec,
        tokenizer: Tokenizer | None,
        start: float,
        owner: str = "",
    ) -> RunningRequest:
        """Rows ``first_row`` and up, one for each of the ``outputs`` of the request's n.

        ``start``: when its caller began to wait. ``owner``: see `PromptRow`.
        """
        rows = [
            RunningRow(
                first_row + place,
                number,
                RunningSequence(Row(request, index), model, tokenizer, start),
                schedule,
            )
            for place, index in enumerate(outputs)
        ]
        prompt = replace(prompt_row(layout, request, schedule, first_row, len(rows)), owner=owner)
        return cls(number, request, schedule, rows, prompt, start)

    @property
    def is_finished(self) -> bool:
        """Whether all completions have ended."""
        return all(row.sequence.finish_reason is not None for row in self.rows)

    def output(self) -> RequestOutput:
        """What there is of it so far."""
        outputs: tuple[CompletionOutput, ...] = tuple(row.sequence.output() for row in self.rows)
        return RequestOutput(
            request_id=str(self.request.index),
            prompt=self.request.prompt,
            prompt_token_ids=self.request.prompt_token_ids,
            outputs=outputs,
            finished=self.is_finished,
            schedule=format_schedule(self.schedule),
            layer_ranges=ranges_of(self.schedule, outputs),
        )


def prompt_row(
    layout: KVLayout, request: Request, schedule: ExitSchedule, first_row: int, rows: int
) -> PromptRow:
    """The row of a request's prompt and its copies, ``rows`` in all, and what they reserve."""
    tokens = request.prompt_token_ids
    reservation = Reservation.of(layout, schedule, len(tokens), request.max_tokens)
    copies = tuple(range(first_row + 1, first_row + rows))
    return PromptRow(first_row, tokens, schedule, reservation, copies)
