"""``echo`` with ``logprobs``: the log-probabilities of the prompts' own tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any
from uuid import uuid4

from starlette.responses import JSONResponse, Response
from starlette.types import Receive

from ....engines.errors import UsageError
from ...tokens.outputs import Logprob, RequestOutput, ScoreOutput
from ...tokens.sampling import MAX_LOGPROBS
from ...tokens.tokenizer import Tokenizer
from .choices import logprobs_document, usage
from .disconnects import cancelled_with
from .errors import ApiError, unavailable
from .metrics import Metrics
from .protocol import CompletionRequest
from .record import RequestRecord
from .served import ServedModel, ServedModels


@dataclass(frozen=True, eq=False)
class Scoring:
    """A request whose prompts are scored, each as it is read: at the depth of a prompt."""

    asked: CompletionRequest
    model: ServedModel
    prompts: list[tuple[int, ...]]  # token ids
    models: ServedModels
    metrics: Metrics
    record: RequestRecord

    async def answer(self, receive: Receive) -> Response:
        """Wait for all texts. Raises ApiError, and what `AsyncEngine.score` does."""
        self._require_few()
        identity = f"cmpl-{uuid4().hex}"
        tasks = list[asyncio.Task[ScoreOutput]]()
        try:
            async with cancelled_with(receive, self.record, tasks):
                for place, prompt in enumerate(self.prompts):
                    if self.record.gone:
                        break
                    tasks.append(asyncio.create_task(self._score(prompt, f"{identity}-{place}")))
                    self.models.running.add(tasks[-1])
                    await asyncio.sleep(0)  # a prompt is checked in its task, others between
                await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            self.models.running.difference_update(tasks)
        scored = _all_or_error(await asyncio.gather(*tasks, return_exceptions=True))
        used = self._count(scored)
        head = {"id": identity, "object": "text_completion", "created": int(time.time())}
        tokenizer = self.model.engine.outline.tokenizer
        choices = await asyncio.to_thread(  # a million numbers take seconds
            lambda: [_choice(one, place, tokenizer) for place, one in enumerate(scored)]
        )
        return JSONResponse(head | {"model": self.model.name, "choices": choices, "usage": used})

    async def _score(self, prompt: Sequence[int], request_id: str) -> ScoreOutput:
        asked = self.asked
        return await self.model.engine.score(
            prompt,
            schedule=asked.schedule,
            top_logprobs=asked.logprobs,
            followed_by=asked.params if asked.max_tokens else None,
            request_id=request_id,
            deadline=asked.timeout,
            client=self.record.client,
        )

    def _require_few(self) -> None:
        tokens = sum(map(len, self.prompts))
        count = tokens * ((self.asked.logprobs or 0) + 1)
        if count > MAX_LOGPROBS:
            raise UsageError(
                "prompt",
                f"{tokens:,} tokens and logprobs {self.asked.logprobs} are {count:,} "
                f"log-probabilities; allowed: {MAX_LOGPROBS:,}; send fewer prompts at once",
            )

    def _count(self, scored: Sequence[ScoreOutput]) -> dict[str, Any]:
        outputs = [_as_request_output(one) for one in scored]
        used = usage(outputs)
        self.record.use(used)
        self.record.finish_reasons = tuple(_finish_reason(one) for one in scored)
        label = self.model.label(self.asked.schedule)
        self.metrics.observe(self.model.name, label, outputs, perf_counter() - self.record.start)
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
    prompt = (*scored.prompt_token_ids, *scored.token_ids)
    return RequestOutput("", None, prompt, outputs, finished=True, schedule=scored.schedule)


def _finish_reason(scored: ScoreOutput) -> str:
    return "length" if scored.following is None else str(scored.following.finish_reason)


def _choice(scored: ScoreOutput, index: int, tokenizer: Tokenizer | None) -> dict[str, Any]:
    following = scored.following
    prompt = (*scored.prompt_token_ids, *scored.token_ids)
    text, offsets = _text(prompt, tokenizer)
    entries: list[dict[int, Logprob]] = [{}, *(scored.top_logprobs or ())]
    tokens = list(prompt)
    if following is not None:
        tokens += following.token_ids
        entries += following.logprobs or ()
        offsets.append(len(text))
        text += following.text
    return {
        "index": index,
        "text": text,
        "logprobs": logprobs_document(tokens, entries, tokenizer, 0) | {"text_offset": offsets},
        "finish_reason": _finish_reason(scored),
        "stop_reason": None if following is None else following.stop_reason,
        "schedule": scored.schedule,
        "layers_per_token": [] if following is None else list(following.layers_per_token),
        "prompt_layers_per_token": [None, *scored.layers_per_token],
    }


def _text(token_ids: Sequence[int], tokenizer: Tokenizer | None) -> tuple[str, list[int]]:
    """A prompt's text without special tokens, and how much of it stands before each token."""
    if tokenizer is None:
        return "", [0] * len(token_ids)
    decoder = tokenizer.incremental_decoder()
    pieces, offsets, length = [], [], 0
    for token_id in token_ids:
        offsets.append(length)
        pieces.append(decoder.push(token_id))
        length += len(pieces[-1])
    pieces.append(decoder.flush())
    return "".join(pieces), offsets
