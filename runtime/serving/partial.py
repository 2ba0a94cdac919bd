"""The result of a request that is ended before its engine has: what has come so far."""

from __future__ import annotations

from collections.abc import Sequence

from ..requests.results import request_output
from ..tokens.outputs import CompletionOutput, RequestOutput, StreamDelta
from .engine_loop import EngineRequest


def last_deltas(
    asked: EngineRequest, deltas: Sequence[StreamDelta], reason: str
) -> list[StreamDelta]:
    """Return the ends, by ``reason``, of those completions that ``deltas`` don't end."""
    ended = {delta.index for delta in deltas if delta.finish_reason is not None}
    return [
        StreamDelta(0, index, (), "", "abort", 0, stop_reason=reason)
        for index in range(asked.request.params.n)
        if index not in ended
    ]


def partial_output(asked: EngineRequest, deltas: Sequence[StreamDelta]) -> RequestOutput:
    """Return the result that ``deltas`` make, which end each completion.

    Text that the engine held back, since a stop string might begin there, is missing.
    """
    outputs = tuple(
        _completion(index, [delta for delta in deltas if delta.index == index])
        for index in range(asked.request.params.n)
    )
    return request_output(asked.request, asked.schedule, outputs, request_id=asked.request_id)


def _completion(index: int, deltas: Sequence[StreamDelta]) -> CompletionOutput:
    token_ids = tuple(token for delta in deltas for token in delta.token_ids)
    logprobs = tuple(entry for delta in deltas for entry in delta.logprobs or ())
    chosen = zip(token_ids, logprobs, strict=False)
    return CompletionOutput(
        index=index,
        text="".join(delta.text for delta in deltas),
        token_ids=token_ids,
        cumulative_logprob=sum(entry[token].logprob for token, entry in chosen)
        if logprobs
        else None,
        logprobs=logprobs or None,
        finish_reason=deltas[-1].finish_reason,
        stop_reason=deltas[-1].stop_reason,
        layers_per_token=tuple(delta.layers for delta in deltas for _ in delta.token_ids),
    )
