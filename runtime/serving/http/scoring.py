"""``echo`` with ``logprobs``: the log-probabilities of the prompts' own tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any
from uuid import uuid4

from starlette.responses import Response
from starlette.types import Receive

from ...requests.request import Request, ScoreRequest
from ...schedule import ExitSchedule
from ...tokens.outputs import Logprob, RequestOutput, ScoreOutput
from ...tokens.tokenizer import Tokenizer
from ..open_request import ServedRequest
from .guard.disconnects import cancelled_with
from .metrics import Metrics
from .protocol.choices import TokenNames, logprobs_document, usage
from .protocol.errors import ApiError, unavailable
from .protocol.pieces import Items, Turns, consumed, json_answer
from .protocol.request import CompletionRequest
from .served import ServedModel, ServedModels
from .watch.record import RequestRecord


@dataclass(frozen=True, eq=False)
class Scoring:
    """A request whose prompts are scored, each as it is read: at the depth of a prompt."""

    asked: CompletionRequest
    model: ServedModel
    prepared: Sequence[tuple[Request | ScoreRequest, ExitSchedule]]  # one a prompt
    models: ServedModels
    metrics: Metrics
    record: RequestRecord

    async def answer(self, receive: Receive) -> Response:
        """Wait for all texts. Raises ApiError, and what `AsyncEngine.score` does."""
        identity = f"cmpl-{uuid4().hex}"
        tasks = list[asyncio.Task[ScoreOutput]]()
        try:
            async with cancelled_with(receive, self.record, tasks):
                for place, prepared in enumerate(self.prepared):
                    if self.record.gone:
                        break
                    tasks.append(asyncio.create_task(self._score(*prepared, f"{identity}-{place}")))
                    self.models.running.add(tasks[-1])
                    await asyncio.sleep(0)  # other requests get a turn between two prompts
                await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            self.models.running.difference_update(tasks)
        scored = _all_or_error(await asyncio.gather(*tasks, return_exceptions=True))
        turns = Turns()
        used = await self._count(scored, turns)
        head = {"id": identity, "object": "text_completion", "created": int(time.time())}
        names = TokenNames(self.model.engine.outline.tokenizer)
        texts = [await _text(_tokens(one), names.tokenizer, turns) for one in scored]
        tasks.clear()  # they hold the scores, each of which is freed once it is encoded
        choices = Items(
            _choice(one, place, *text, names)
            for place, (one, text) in enumerate(zip(consumed(scored), texts, strict=True))
        )
        document = head | {"model": self.model.name, "choices": choices, "usage": used}
        return await json_answer(document)

    async def _score(
        self, request: Request | ScoreRequest, schedule: ExitSchedule, request_id: str
    ) -> ScoreOutput:
        asked = ServedRequest.named(request, schedule, request_id, self.asked.timeout)
        return await self.model.engine.wait_for_scores(asked)

    async def _count(self, scored: Sequence[ScoreOutput], turns: Turns) -> dict[str, Any]:
        outputs = [_as_request_output(one) for one in scored]
        used = await usage(outputs, turns)
        self.record.use(used)
        self.record.finish_reasons = tuple(_finish_reason(one) for one in scored)
        label = self.model.label(self.asked.schedule)
        seconds = perf_counter() - self.record.start
        await self.metrics.observe(self.model.name, label, outputs, seconds, turns)
        return used


def _all_or_error(results: Sequence[ScoreOutput | BaseException]) -> list[ScoreOutput]:
    """The results; raises what one failed with, rather than that others were then given up."""
    errors = [one for one in results if isinstance(one, BaseException)]
    for error in errors:
        if isinstance(error, TimeoutError):
            raise ApiError(504, str(error), "server_error", code="deadline") from error
        if not isinstance(error, asyncio.CancelledError):
            raise error
    if errors:  # its client has gone, or the server was cut
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


def _choice(
    scored: ScoreOutput, index: int, text: str, offsets: list[int], names: TokenNames
) -> dict[str, Any]:
    """Describe a prompt; ``text`` and ``offsets``: what `_text` makes of it."""
    following = scored.following
    entries: list[dict[int, Logprob]] = [{}, *(scored.top_logprobs or ())]
    tokens = list(_tokens(scored))
    if following is not None:
        tokens += following.token_ids
        entries += following.logprobs or ()
        offsets = [*offsets, len(text)]
        text += following.text
    return {
        "index": index,
        "text": text,
        "logprobs": logprobs_document(tokens, entries, names, 0) | {"text_offset": offsets},
        "finish_reason": _finish_reason(scored),
        "stop_reason": None if following is None else following.stop_reason,
        "schedule": scored.schedule,
        "layers_per_token": [] if following is None else list(following.layers_per_token),
        "prompt_layers_per_token": [None, *scored.layers_per_token],
    }


async def _text(
    token_ids: Sequence[int], tokenizer: Tokenizer | None, turns: Turns
) -> tuple[str, list[int]]:
    """Return a prompt's text without special tokens, and how much of it precedes each token."""
    if tokenizer is None:
        return "", [0] * len(token_ids)
    decoder = tokenizer.incremental_decoder()
    pieces, offsets, length = [], [], 0
    for token_id in token_ids:
        offsets.append(length)
        pieces.append(decoder.push(token_id))
        length += len(pieces[-1])
        await turns.take()
    pieces.append(decoder.flush())
    return "".join(pieces), offsets
