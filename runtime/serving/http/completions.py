"""POST /v1/completions: checked, queued, and answered whole or token by token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from uuid import uuid4

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive

from ....engines.errors import UsageError, few
from ...requests.request import Request, ScoreRequest
from ...schedule import ExitSchedule
from ...tokens.outputs import RequestOutput
from ...tokens.sampling import SamplingParams
from ..open_request import ServedRequest
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

Prepared = tuple[Request | ScoreRequest, ExitSchedule]


@dataclass(eq=False)
class Completion:
    """A request of a client and its streams, one a prompt."""

    asked: CompletionRequest
    model: ServedModel
    models: ServedModels
    metrics: Metrics
    record: RequestRecord
    streams: list[RequestStream]
    id: str
    created: int  # seconds since 1970

    @property
    def head(self) -> dict[str, object]:
        """The fields that every document of an answer begins with."""
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model.name,
        }

    def echoed(self, index: int) -> str:
        """Return the echo of prompt ``index``; "" without ``echo``."""
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
    request: HttpRequest, models: ServedModels, config: ServerConfig
) -> tuple[CompletionRequest, ServedModel, list[Prepared]]:
    """Read a body and prepare its prompts. Raises ApiError and SkipDecError."""
    record = RequestRecord.of(request.scope)
    if models.is_draining:
        raise unavailable("the server is draining; no request is taken")
    body = await read_body(request, config)
    is_short = is_small(body)
    parse = CompletionRequest.parse
    asked = parse(body) if is_short else await asyncio.to_thread(parse, body)
    model = models.named(asked.model)
    record.model, record.schedule, record.prompts = model.name, asked.schedule, len(asked.prompts)
    if is_short and model.lists(asked.schedule):
        prepared = _prepare(asked, model, record.client)
    else:
        prepared = await asyncio.to_thread(_prepare, asked, model, record.client)
    return asked, model, prepared


async def begin(
    asked: CompletionRequest,
    model: ServedModel,
    prepared: Sequence[Prepared],
    *,
    models: ServedModels,
    metrics: Metrics,
    record: RequestRecord,
) -> Completion:
    """Queue all prompts of a body or none; other requests get a turn between two prompts.

    Raises CapacityError, OverloadedError and ClosedError as `EngineService.submit`.
    """
    identity = f"cmpl-{uuid4().hex}"
    streams = list[RequestStream]()
    turns = Turns()
    try:
        for place, (made, schedule) in enumerate(prepared):
            served = ServedRequest.named(made, schedule, f"{identity}-{place}", asked.timeout)
            streams.append(model.engine.start(served))
            await turns.take()
    except BaseException:
        for stream in streams:
            stream.cancel()
        raise
    record.texts = [stream.times for stream in streams]
    return Completion(asked, model, models, metrics, record, streams, identity, int(time.time()))


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


async def read_body(request: HttpRequest, config: ServerConfig) -> bytes:
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


def _prepare(asked: CompletionRequest, model: ServedModel, client: str) -> list[Prepared]:
    """Check the schedule, tokenize and check all prompts once, and bound the log-probabilities."""
    max_tokens = 16 if asked.max_tokens is None else asked.max_tokens
    model.require_allowed(asked.schedule, max_tokens or 16)
    params = None if asked.scores_prompts and not asked.max_tokens else asked.params
    prepared: list[Prepared] = []
    problems: list[str] = []
    for place, prompt in enumerate(asked.prompts):
        try:
            prepared.append(_prepare_one(asked, model, prompt, params, client, f"prompt {place}"))
        except UsageError as error:
            problems += error.problems
    if problems:
        raise UsageError("prompt", *few(problems))
    _require_few_logprobs(asked, [request for request, _ in prepared])
    return prepared


def _prepare_one(
    asked: CompletionRequest,
    model: ServedModel,
    prompt: str | list[int],
    params: SamplingParams | None,
    client: str,
    subject: str,
) -> Prepared:
    outline = model.engine.outline
    if not asked.scores_prompts:
        return outline.prepare(prompt, params, asked.schedule, client, subject)
    return outline.prepare_score(
        prompt,
        None,
        asked.schedule,
        top_logprobs=asked.logprobs,
        followed_by=params,
        client=client,
        subject=subject,
    )


def _require_few_logprobs(
    asked: CompletionRequest, requests: Sequence[Request | ScoreRequest]
) -> None:
    if asked.logprobs is None:
        return
    scored = sum(len(one.fed) for one in requests if isinstance(one, ScoreRequest))
    if scored:
        words, remedy = f"{scored:,} tokens", "send fewer prompts at once"
    else:
        words = f"{len(requests)} prompts, n {asked.n}, max_tokens {asked.max_tokens}"
        remedy = "lower one of them, or send fewer prompts at once"
    made = asked.n * sum(one.max_tokens for one in requests if isinstance(one, Request))
    require_few_logprobs(scored or made, asked.logprobs, words, remedy)
