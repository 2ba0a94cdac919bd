"""What a call gives back: step by step, and gathered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..schedule import ExitSchedule
from ..schedule.plan import LayerRanges
from ..schedule.text import format_schedule
from ..tokens.outputs import CompletionOutput, RequestOutput, StreamDelta
from .request import Request


@dataclass(frozen=True)
class Step:
    """What one step added: a delta a row, and completions that are whole, by their request's index.

    A completion may be told a few steps after its last delta.
    """

    deltas: list[StreamDelta]
    finished: list[tuple[int, CompletionOutput]]


def gather_outputs(
    requests: Sequence[Request],
    schedules: Sequence[ExitSchedule],
    steps: Iterable[Step],
    on_progress: Callable[[Sequence[StreamDelta]], None] | None = None,
) -> list[RequestOutput]:
    """Take all ``steps`` and return the results of ``requests``, each at its schedule, in order.

    ``on_progress`` gets the deltas of each step.
    """
    outputs: dict[tuple[int, int], CompletionOutput] = {}
    for step in steps:
        for request_index, completion in step.finished:
            outputs[request_index, completion.index] = completion
        if on_progress is not None:
            on_progress(step.deltas)
    gathered = [
        tuple(outputs[request.index, place] for place in range(request.params.n))
        for request in requests
    ]
    texts = {schedule: format_schedule(schedule) for schedule in set(schedules)}
    return [
        RequestOutput(
            request_id=str(request.index),
            prompt=request.prompt,
            prompt_token_ids=request.prompt_token_ids,
            outputs=completions,
            finished=True,
            schedule=texts[schedule],
            layer_ranges=ranges_of(schedule, completions),
        )
        for request, schedule, completions in zip(requests, schedules, gathered, strict=True)
    ]


def ranges_of(
    schedule: ExitSchedule, completions: Iterable[CompletionOutput]
) -> dict[int, LayerRanges]:
    """Return the layers of each number of layers that ``completions`` ran."""
    return schedule.layer_ranges(
        count for completion in completions for count in set(completion.layers_per_token)
    )
