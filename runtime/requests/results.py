"""The result of a request, made of its completions."""

from __future__ import annotations

from ..schedule import ExitSchedule
from ..schedule.text import format_schedule
from ..tokens.outputs import CompletionOutput, RequestOutput
from .request import Request


def request_output(
    request: Request,
    schedule: ExitSchedule,
    completions: tuple[CompletionOutput, ...],
    *,
    finished: bool = True,
    request_id: str | None = None,
) -> RequestOutput:
    """Return the result of ``request`` at ``schedule``, named by its index without a request_id."""
    return RequestOutput(
        request_id=str(request.index) if request_id is None else request_id,
        prompt=request.prompt,
        prompt_token_ids=request.prompt_token_ids,
        outputs=completions,
        finished=finished,
        schedule=format_schedule(schedule),
        layer_ranges=schedule.layer_ranges(
            {depth for completion in completions for depth in completion.layers_per_token}
        ),
    )
