"""``echo`` with ``logprobs``: the log-probabilities of the prompts' own tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from ...tokens.outputs import Logprob, RequestOutput, ScoreOutput
from ..messages import ServedRequest
from .completions import TextAnswer, answer_head
from .documents import TextOffsets, TokenNames, json_answer, logprobs_document
from .logs import RequestRecord
from .metrics import Metrics
from .models import ServedModel, ServedModels
from .protocol import ApiError, CompletionRequest, unavailable


async def scored_answer(
    body: CompletionRequest,
    model: ServedModel,
    prepared: Sequence[ServedRequest],
    request: HttpRequest,
    models: ServedModels,
    metrics: Metrics,
) -> Response:
    """Score all prompts, at the depth of prompt tokens.

    Raises ApiError, and what `EngineService.score` raises.
    """
    record = RequestRecord.of(request.scope)
    head = answer_head(model, TextAnswer.id_prefix, TextAnswer.kind)
    tasks = list[asyncio.Task[ScoreOutput]]()
    async with models.running_for(request.receive, record, tasks):
        for one in prepared:
            if record.disconnected:
                break
            tasks.append(asyncio.create_task(model.engine.wait_for_scores(one)))
            await asyncio.sleep(0)  # other requests get a turn between two prompts
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    scored = _all_or_error(await asyncio.gather(*tasks, return_exceptions=True))

    def make() -> tuple[dict[str, object], Iterator[object], object]:
        record.finish_reasons = tuple(_finish_reason(one) for one in scored)
        outputs = [_as_request_output(one) for one in scored]
        used = metrics.observe(record, model.label(body.schedule), outputs)
        names = TokenNames(model.engine.inputs.tokenizer)
        indices = range(len(scored))
        return head, (_choice(scored.pop(0), index, names) for index in indices), used

    tasks.clear()  # so that scores are freed as they are encoded
    return await json_answer(make)


def _all_or_error(results: Sequence[ScoreOutput | BaseException]) -> list[ScoreOutput]:
    """Return the results, or raise the error that caused the failure of all others."""
    errors = [one for one in results if isinstance(one, BaseException)]
    for error in errors:
        if isinstance(error, TimeoutError):
            raise ApiError(504, str(error), "server_error", code="deadline") from error
        if not isinstance(error, asyncio.CancelledError):
            raise error
    if errors:  # the client has disconnected, or the server was cut off
        raise unavailable("the text was given up before it was scored")
    return [one for one in results if isinstance(one, ScoreOutput)]


def _as_request_output(scored: ScoreOutput) -> RequestOutput:
    outputs = () if scored.following is None else (scored.following,)
    return RequestOutput(
        "", None, _tokens(scored), outputs, finished=True, schedule=scored.schedule
    )


def _finish_reason(scored: ScoreOutput) -> str:
    return "length" if scored.following is None else str(scored.following.finish_reason)


def _tokens(scored: ScoreOutput) -> tuple[int, ...]:
    return (*scored.prompt_token_ids, *scored.token_ids)


def _choice(scored: ScoreOutput, index: int, names: TokenNames) -> dict[str, Any]:
    """Describe a prompt."""
    tokens = list(_tokens(scored))
    text = "" if names.tokenizer is None else names.tokenizer.decode(tokens)
    offsets = TextOffsets(names, 0).before_all(tokens)
    following = scored.following
    entries: list[dict[int, Logprob]] = [{}, *(scored.top_logprobs or ())]
    if following is not None:
        tokens += following.token_ids
        entries += following.logprobs or ()
        offsets.append(len(text))
        text += following.text
    return {
        "index": index,
        "text": text,
        "logprobs": logprobs_document(tokens, entries, names, offsets),
        "finish_reason": _finish_reason(scored),
        "stop_reason": None if following is None else following.stop_reason,
        "schedule": scored.schedule,
        "layers_per_token": [] if following is None else list(following.layers_per_token),
        "prompt_layers_per_token": [None, *scored.layers_per_token],
    }
