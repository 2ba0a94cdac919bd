"""RunningRequest: a request inside a running batch, and its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ..kv.buffers import KVLayout
from ..kv.cache import Reservation
from ..requests.request import Request
from ..requests.results import request_output
from ..requests.row import Row
from ..schedule import ExitSchedule
from ..stitching.protocol import PromptRow
from ..tokens.outputs import RequestOutput
from .loaded_bundle import LoadedBundle


@dataclass(frozen=True)
class RunningRequest:
    """A request that waits or runs: its rows, one for each completion, which share its prompt.

    ``number`` names it within the running batch. ``start`` is the ``perf_counter`` time at which
    its caller began to wait.
    """

    number: int
    request: Request
    schedule: ExitSchedule
    rows: tuple[Row, ...]
    prompt: PromptRow
    start: float

    @classmethod
    def create(
        cls,
        loaded: LoadedBundle,
        number: int,
        request: Request,
        schedule: ExitSchedule,
        *,
        outputs: range,
        first_row: int,
        start: float,
        owner: str = "",
    ) -> Self:
        """Make rows ``first_row`` and up for the completions ``outputs`` of the request.

        ``owner`` is that of the kept prefixes which the prompt may use, see `PromptRow`.
        """
        rows = tuple(
            Row(
                request,
                output_index,
                schedule,
                loaded.model,
                loaded.tokenizer,
                start,
                number=row,
                request_number=number,
            )
            for row, output_index in enumerate(outputs, first_row)
        )
        prompt = prompt_row(loaded.layout, request, schedule, len(rows), first_row, owner)
        return cls(number, request, schedule, rows, prompt, start)

    @property
    def prompt_length(self) -> int:
        """The number of the prompt's tokens."""
        return len(self.request.prompt_token_ids)

    @property
    def num_rows(self) -> int:
        """The number of completions that run side by side."""
        return len(self.rows)

    @property
    def client(self) -> str:
        """The name of the client that asks."""
        return self.request.client

    @property
    def is_finished(self) -> bool:
        """Return whether all completions have ended."""
        return all(row.finish_reason is not None for row in self.rows)

    def output(self) -> RequestOutput:
        """Return the result so far."""
        completions = tuple(row.output() for row in self.rows)
        return request_output(self.request, self.schedule, completions, finished=self.is_finished)


def prompt_row(
    layout: KVLayout,
    request: Request,
    schedule: ExitSchedule,
    num_rows: int,
    first_row: int = 0,
    owner: str = "",
) -> PromptRow:
    """Return the stitcher's view of a prompt: its row, its copies, and what each reserves."""
    tokens = request.prompt_token_ids
    reservation = Reservation.of(layout, schedule, len(tokens), request.max_tokens)
    copies = tuple(range(first_row + 1, first_row + num_rows))
    return PromptRow(first_row, tokens, schedule, reservation, copies, owner)
