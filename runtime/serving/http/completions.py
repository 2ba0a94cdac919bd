"""Requests for texts: checking, queueing, and answers, whole or as server-sent events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar, cast
from uuid import uuid4

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from ....engines.errors import ScheduleError, SkipDecError, UsageError, brief, few, shown
from ...requests.request import Request
from ...requests.score_request import ScoreRequest
from ...tokens.outputs import Logprob, RequestOutput, StreamDelta, joined
from ..messages import ServedRequest
from ..stream import RequestStream
from .config import MAX_REQUEST_LOGPROBS, ServerConfig
from .documents import (
    ShownSchedule,
    TextOffsets,
    TokenNames,
    choice_document,
    event,
    json_answer,
)
from .logs import RequestRecord
from .metrics import Metrics
from .models import ServedModel, ServedModels
from .protocol import (
    ApiError,
    TextRequest,
    api_error,
    is_small,
    unavailable,
)

_CHUNK = 32  # maximum number of a completion's deltas in one event
_EVENT_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # else nginx buffers events until it has 4 KiB
]

Kind = TypeVar("Kind", bound=TextRequest)
Made = TypeVar("Made")


async def read_request(
    kind: type[Kind],
    request: HttpRequest,
    models: ServedModels,
    config: ServerConfig,
) -> tuple[Kind, ServedModel, list[ServedRequest]]:
    """Read a body and prepare its prompts. Raises ApiError and SkipDecError."""
    record = RequestRecord.of(request.scope)
    if models.is_draining:
        raise unavailable("the server is draining; no request is taken")
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        problem = f"the body has the Content-Encoding {shown(encoding)}; send plain JSON"
        raise ApiError(415, problem, headers={"Accept-Encoding": "identity"})
    content = await _read_body(request, config.read_timeout)
    is_short, parse = is_small(content), kind.parse
    beside = partial(run_beside, request, models)
    body = parse(content) if is_short else await beside(models.preparation, partial(parse, content))
    model = models.named(body.model)
    record.model, record.schedule, record.prompts = model.name, body.schedule, len(body.prompts)
    model.engine.requests.require_may_wait(len(body.prompts))
    prepare = partial(_prepare, body, model, record.client, config)
    if body.content == "messages":
        model.require_template()
        prepared = await beside(model.chats, prepare)
    elif is_short and model.lists(body.schedule):
        prepared = prepare()
    else:
        prepared = await beside(models.preparation, prepare)
    return body, model, prepared


async def run_beside(
    request: HttpRequest,
    models: ServedModels,
    threads: ThreadPoolExecutor,
    call: Callable[[], Made],
) -> Made:
    """Run ``call`` in one of ``threads``, unless the client disconnects before one is free.

    Raises ApiError 499, which nobody receives, if the client disconnects, and what ``call`` raises.
    """
    record = RequestRecord.of(request.scope)
    made = asyncio.get_running_loop().run_in_executor(threads, _detached, call)
    async with models.running_for(request.receive, record, [made]):
        try:
            result = await made
        except asyncio.CancelledError:
            if not record.disconnected:
                raise
    if record.disconnected:
        raise _disconnected()
    return result


def _detached(call: Callable[[], Made]) -> Made:
    """Return what ``call`` returns, or raise its error without the frames and causes behind it.

    They refer to the values of the body; freeing 250,000 numbers takes the event loop milliseconds.
    """
    try:
        return call()
    except (ApiError, SkipDecError) as error:
        error.__cause__ = error.__context__ = None
        raise error.with_traceback(None) from None


async def _read_body(request: HttpRequest, seconds: float) -> bytes:
    """Return the body.

    Raises ApiError 408 if it does not arrive in time, 413 if it is too long, and 499, which nobody
    receives, if the client disconnects.
    """
    try:
        async with asyncio.timeout(seconds):
            return await request.body()
    except TimeoutError:
        waited = f"the body did not come within {seconds:g} s"
        raise ApiError(408, waited, headers={"Connection": "close"}) from None
    except ClientDisconnect:
        RequestRecord.of(request.scope).disconnected = True
        raise _disconnected() from None


def _disconnected() -> ApiError:
    return ApiError(499, "the client went before its request was read")


def _prepare(
    body: TextRequest, model: ServedModel, client: str, config: ServerConfig
) -> list[ServedRequest]:
    """Tokenize and check all prompts and the schedule; limit the log-probabilities."""
    model.require_notation(body.schedule)
    inputs = model.engine.inputs
    params = None if body.scores_prompts and not body.length else body.params
    if body.scores_prompts:
        top = body.num_logprobs
        prepare = partial(
            inputs.prepare_score, continuation=None, top_logprobs=top, followed_by=params
        )
    else:
        prepare = partial(inputs.prepare, params=params, draft=body.draft)
    prepared: list[ServedRequest] = []
    problems: list[str] = []
    for index, prompt in enumerate(body.prompts_with(config.special_tokens)):
        try:
            prepared.append(
                prepare(
                    prompt,
                    schedule=body.schedule,
                    deadline=body.timeout,
                    client=client,
                    subject=body.subject(index),
                )
            )
        except ScheduleError as error:
            raise model.unread(body.schedule, error) from error
        except UsageError as error:
            problems += error.problems
    if problems:
        raise ApiError(400, brief("; ".join(few(problems))), param=body.field_of(problems[0]))
    for one in prepared:
        max_tokens = one.request.max_tokens if isinstance(one.request, Request) else 1
        model.require_allowed(body.schedule, one.schedule, max_tokens)
    _require_few_logprobs(body, [one.request for one in prepared])
    return prepared


def _require_few_logprobs(body: TextRequest, requests: Sequence[Request | ScoreRequest]) -> None:
    """Raise ApiError if the answer may have too many log-probabilities."""
    if body.num_logprobs is None:
        return
    tokens = sum(len(one.fed) for one in requests if isinstance(one, ScoreRequest))
    if tokens:
        words, remedy = f"{tokens:,} tokens", "send fewer prompts at once"
    else:
        tokens = body.n * sum(one.max_tokens for one in requests if isinstance(one, Request))
        words = f"{len(requests)} prompts, n {body.n}, max_tokens {body.length}"
        remedy = "lower one of them, or send fewer prompts at once"
    count = tokens * (body.num_logprobs + 1)
    if count > MAX_REQUEST_LOGPROBS:
        raise ApiError(
            400,
            f"{words} and logprobs {body.num_logprobs} are up to {count:,} log-probabilities; "
            f"allowed: {MAX_REQUEST_LOGPROBS:,} in one answer; {remedy}",
            param=body.content,
        )


class TextAnswer(Response):
    """The answer to a request: `whole`, or a stream of events if this object is sent.

    A failure after the first event is sent as an event.
    """

    id_prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def __init__(
        self,
        body: TextRequest,
        model: ServedModel,
        request: HttpRequest,
        models: ServedModels,
        metrics: Metrics,
    ) -> None:
        super().__init__()
        self._body = body
        self._model = model
        self._receive = request.receive
        self._record = RequestRecord.of(request.scope)
        self._models = models
        self._metrics = metrics
        self._head = answer_head(model, self.id_prefix, self.kind)
        self._names = TokenNames(model.engine.inputs.tokenizer)
        self._has_drafts = model.engine.inputs.draft is not None and body.draft is None
        self._echoes = [""] * len(body.prompts)
        self._streams: list[RequestStream] = []  # one per prompt
        self._schedules: list[ShownSchedule] = []

    def _shaped(
        self,
        choice: dict[str, Any],
        part: Literal["message", "delta"],
        token_ids: Sequence[int],
        logprobs: Sequence[Mapping[int, Logprob]] | None,
    ) -> dict[str, Any]:
        """Return a choice, whole or its next part, in the form of this kind of answer."""
        return choice

    def _opening(self, index: int) -> Iterator[dict[str, object]]:
        """Yield what a stream sends before the first text of choice ``index``."""
        yield from ()

    async def queue(self, prepared: Sequence[ServedRequest]) -> None:
        """Queue all prompts or none; other requests get a turn between two prompts.

        Raises CapacityError, OverloadedError and ClosedError as `EngineService.submit`.
        """
        if self._body.echoes:
            loop, threads = asyncio.get_running_loop(), self._models.preparation
            self._echoes = await loop.run_in_executor(threads, self._echoed)
        try:
            for one in prepared:
                self._streams.append(self._model.engine.start(one))
                await asyncio.sleep(0)
        except BaseException as error:
            for stream in self._streams:
                stream.cancel()
            if isinstance(error, UsageError):
                field = self._body.field_of(f"{error.subject} ")
                raise replace(api_error(error), param=field) from error
            raise
        self._record.texts = [stream.times for stream in self._streams]
        self._schedules = [ShownSchedule(one.exit_schedule, one.schedule) for one in self._streams]

    async def whole(self) -> Response:
        """Wait for all texts. Raises ApiError if one has failed."""
        async with self._models.running_for(self._receive, self._record, self._streams):
            outputs = [await stream.output() for stream in self._streams]
        self._streams.clear()  # so that outputs are freed as they are encoded
        return await json_answer(
            lambda: (self._head, self._whole_choices(outputs), self._finish(outputs))
        )

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._models.running_for(receive, self._record, self._streams):
            await send({"type": "http.response.start", "status": 200, "headers": _EVENT_HEADERS})
            async for data in self._events():
                await send({"type": "http.response.body", "body": data, "more_body": True})
                await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    def _finish(self, outputs: list[RequestOutput]) -> dict[str, object]:
        """Record the usage of an answer and return it. Raises ApiError if a text has failed."""
        completions = [one for output in outputs for one in output.outputs]
        self._record.finish_reasons = tuple(str(one.finish_reason) for one in completions)
        label = self._model.label(self._body.schedule)
        used = self._metrics.observe(self._record, label, outputs, counts_drafts=self._has_drafts)
        for one in completions:
            if one.finish_reason == "error":
                raise ApiError(500, str(one.stop_reason), "server_error", code="engine_failed")
        return used

    def _whole_choices(self, outputs: list[RequestOutput]) -> Iterator[dict[str, object]]:
        for prompt, schedule in enumerate(self._schedules):
            echo = self._echoes[prompt]
            for one in outputs.pop(0).outputs:
                index, offsets = self._index(prompt, one.index), self._offsets(prompt)
                choice = choice_document(one, index, echo, schedule, self._names, offsets)
                yield self._shaped(choice, "message", one.token_ids, one.logprobs)

    def _echoed(self) -> list[str]:
        """Return the text of each prompt."""
        tokenizer = self._names.tokenizer

        def text(token_ids: list[int]) -> str:
            return "" if tokenizer is None else tokenizer.decode(token_ids)

        prompts = self._body.prompts
        return [one if isinstance(one, str) else text(cast(list[int], one)) for one in prompts]

    def _offsets(self, prompt: int) -> TextOffsets:
        """Return the counter of characters before the tokens of a text of prompt ``prompt``."""
        skips = self._body.skip_special_tokens
        return TextOffsets(self._names, len(self._echoes[prompt]), skip_special_tokens=skips)

    def _index(self, prompt: int, completion: int) -> int:
        """Return the index of a choice; the completions of a prompt are consecutive."""
        return prompt * self._body.n + completion

    async def _events(self) -> AsyncIterator[bytes]:
        head = self._head | {"object": self.chunk_kind}
        head |= {"usage": None} if self._body.includes_usage else {}
        try:
            async for choice in self._event_choices():
                yield event(head | {"choices": [choice]})
            outputs = [await stream.output() for stream in self._streams]
            used = await asyncio.to_thread(self._finish, outputs)
            if self._body.includes_usage:
                yield event(head | {"choices": [], "usage": used})
        except (ApiError, SkipDecError) as error:
            answer = api_error(error)
            self._record.error = answer.code
            yield event(answer.document())

    async def _event_choices(self) -> AsyncIterator[dict[str, object]]:
        """Yield a choice for each completion with new deltas, until all have ended."""
        offsets: dict[int, TextOffsets] = {}  # by choice
        async for prompt, deltas in _merged(self._streams):
            for chunk in by_completion(deltas):
                news, echo = joined(chunk), ""
                index, schedule = self._index(prompt, news.index), self._schedules[prompt]
                if index not in offsets:
                    offsets[index], echo = self._offsets(prompt), self._echoes[prompt]
                    for choice in self._opening(index):
                        yield choice
                choice = choice_document(news, index, echo, schedule, self._names, offsets[index])
                if self._has_drafts:
                    choice["drafted"] = [one.drafted for one in chunk for _ in one.token_ids]
                yield self._shaped(choice, "delta", news.token_ids, news.logprobs)


def answer_head(model: ServedModel, id_prefix: str, kind: str) -> dict[str, object]:
    """Return the fields with which every document of a new answer begins."""
    return {
        "id": f"{id_prefix}-{uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model.name,
    }


def by_completion(deltas: Sequence[StreamDelta]) -> Iterator[list[StreamDelta]]:
    """Group deltas by completion, in parts of limited size if a slow reader left many unread."""
    by_index: dict[int, list[StreamDelta]] = {}
    for delta in deltas:
        by_index.setdefault(delta.index, []).append(delta)
    for mine in by_index.values():
        for start in range(0, len(mine), _CHUNK):
            yield mine[start : start + _CHUNK]


async def _merged(
    streams: Sequence[RequestStream],
) -> AsyncIterator[tuple[int, Sequence[StreamDelta]]]:
    """Yield the streams' deltas as they arrive, each with the index of its stream."""
    tasks = {asyncio.create_task(stream.read()): index for index, stream in enumerate(streams)}
    try:
        while tasks:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=tasks.__getitem__):
                index = tasks.pop(task)
                if deltas := task.result():
                    yield index, deltas
                    tasks[asyncio.create_task(streams[index].read())] = index
    finally:
        for task in tasks:
            task.cancel()
