"""POST /v1/completions: checked, queued, and answered whole or token by token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from uuid import uuid4

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive

from ....engines.errors import UsageError, few
from ...requests.prompts import checked_token_ids
from ...tokens.outputs import RequestOutput
from ..stream import RequestStream
from .config import ServerConfig
from .guard.disconnects import cancelled_with
from .metrics import Metrics
from .protocol.bodies import is_small
from .protocol.choices import TokenNames, usage, whole_choice
from .protocol.errors import ApiError, unavailable
from .protocol.pieces import Items, Turns, consumed, json_answer
from .protocol.request import CompletionRequest, require_few_logprobs
from .served import ServedModel, ServedModels
from .watch.record import RequestRecord


@dataclass(eq=False)
class Completion:
    """A request of a client and its streams, one a prompt."""

    asked: CompletionRequest
    model: ServedModel
    models: ServedModels
    metrics: Metrics
    record: RequestRecord
    prompts: list[tuple[int, ...]]  # token ids
    streams: list[RequestStream]
    id: str
    created: int  # seconds since 1970

    @property
    def head(self) -> dict[str, object]:
        """What all documents of an answer begin with."""
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model.name,
        }

    def echoed(self, index: int) -> str:
        """What stands before the texts of prompt ``index``; "" unless that was asked for."""
        if not self.asked.echo:
            return ""
        prompt = self.asked.prompts[index]
        tokenizer = self.model.engine.outline.tokenizer
        if isinstance(prompt, str):
            return prompt
        return "" if tokenizer is None else tokenizer.decode(prompt)

    @asynccontextmanager
    async def cancelled_with(self, receive: Receive) -> AsyncIterator[None]:
        """Within the block a client that goes ends its texts, as does leaving it early."""
        self.models.running.update(self.streams)
        try:
            async with cancelled_with(receive, self.record, self.streams):
                yield
        finally:
            self.models.running.difference_update(self.streams)

    async def finish(self, outputs: list[RequestOutput]) -> dict[str, object]:
        """Note what an answer used, and return it. Raises ApiError if a text has failed."""
        turns = Turns()
        used = await usage(outputs, turns)
        self.record.use(used)
        completions = [one for output in outputs for one in output.outputs]
        self.record.finish_reasons = tuple(str(one.finish_reason) for one in completions)
        label = self.model.label(self.asked.schedule)
        seconds = perf_counter() - self.record.start
        await self.metrics.observe(self.model.name, label, outputs, seconds, turns)
        for one in completions:
            if one.finish_reason == "error":
                raise ApiError(500, str(one.stop_reason), "server_error", code="engine_failed")
        return used


async def read_completion(
    request: Request, models: ServedModels, config: ServerConfig
) -> tuple[CompletionRequest, ServedModel, list[tuple[int, ...]]]:
    """What is asked, of which model, and the prompts' token ids. Raises ApiError, UsageError."""
    record = RequestRecord.of(request.scope)
    if models.is_draining:
        raise unavailable("the server is draining; no request is taken")
    body = await read_body(request, config)
    stays = is_small(body)
    parse = CompletionRequest.parse
    asked = parse(body) if stays else await asyncio.to_thread(parse, body)
    model = models.named(asked.model)
    record.model, record.schedule, record.prompts = model.name, asked.schedule, len(asked.prompts)
    if stays and model.lists(asked.schedule):
        return asked, model, _token_ids(asked, model)
    return asked, model, await asyncio.to_thread(_token_ids, asked, model)


async def begin(
    asked: CompletionRequest,
    model: ServedModel,
    prompts: list[tuple[int, ...]],
    *,
    models: ServedModels,
    metrics: Metrics,
    record: RequestRecord,
) -> Completion:
    """Queue what was read, all of its prompts or none; others get a turn between two prompts.

    Raises UsageError, OverloadedError and ClosedError as `AsyncEngine.submit`, and UsageError for
    more log-probabilities than one answer may have.
    """
    _require_few_logprobs(asked, model, prompts)
    identity = f"cmpl-{uuid4().hex}"
    streams = list[RequestStream]()
    params, turns = asked.params, Turns()
    try:
        for place, prompt in enumerate(prompts):
            streams.append(
                model.engine.submit(
                    prompt,
                    params,
                    schedule=asked.schedule,
                    request_id=f"{identity}-{place}",
                    deadline=asked.timeout,
                    client=record.client,
                )
            )
            await turns.take()
    except BaseException:
        for stream in streams:
            stream.cancel()
        raise
    record.texts = [stream.times for stream in streams]
    created = int(time.time())
    return Completion(asked, model, models, metrics, record, prompts, streams, identity, created)


async def whole_answer(completion: Completion, receive: Receive) -> Response:
    """Wait for all texts. Raises ApiError if one has failed."""
    async with completion.cancelled_with(receive):
        outputs = [await stream.output() for stream in completion.streams]
    used = await completion.finish(outputs)
    completion.streams.clear()  # they hold the outputs, each of which is freed once it is encoded
    choices = Items(_choices(completion, outputs))
    return await json_answer(completion.head | {"choices": choices, "usage": used})


def _choices(completion: Completion, outputs: list[RequestOutput]) -> Iterator[dict[str, object]]:
    names = TokenNames(completion.model.engine.outline.tokenizer)
    for place, output in enumerate(consumed(outputs)):
        prompt = completion.echoed(place)
        for one in output.outputs:
            index = place * completion.asked.n + one.index
            yield whole_choice(output, one, index, prompt, names)


def _require_few_logprobs(
    asked: CompletionRequest, model: ServedModel, prompts: list[tuple[int, ...]]
) -> None:
    if asked.logprobs is None:
        return
    positions = model.engine.outline.model.max_seq_len
    tokens = asked.n * sum(
        positions - len(prompt) if asked.max_tokens is None else asked.max_tokens
        for prompt in prompts
    )
    require_few_logprobs(
        tokens,
        asked.logprobs,
        f"{len(prompts)} prompts, n {asked.n}, max_tokens {asked.max_tokens}",
        "lower one of them, or send fewer prompts at once",
    )


async def read_body(request: Request, config: ServerConfig) -> bytes:
    """Return the body. Raises ApiError 408 if it doesn't come, 413 if it is too long.

    And 499, which nobody gets, if its client goes.
    """
    try:
        async with asyncio.timeout(config.read_timeout):
            return await request.body()
    except TimeoutError:
        waited = f"the body did not come within {config.read_timeout:g} s"
        raise ApiError(408, waited, headers={"Connection": "close"}) from None
    except ClientDisconnect:
        RequestRecord.of(request.scope).gone = True
        raise ApiError(499, "the client went before its request was whole") from None


def _token_ids(asked: CompletionRequest, model: ServedModel) -> list[tuple[int, ...]]:
    """The prompts' token ids, once the schedule is found to be allowed."""
    model.require_allowed(asked.schedule, asked.max_tokens or 16)
    outline = model.engine.outline
    problems, prompts = [], []
    for place, prompt in enumerate(asked.prompts):
        found, token_ids = checked_token_ids(
            prompt, f"prompt {place}", outline.model, outline.tokenizer
        )
        problems += found
        prompts.append(token_ids)
    if problems:
        raise UsageError("prompt", *few(problems))
    return prompts
