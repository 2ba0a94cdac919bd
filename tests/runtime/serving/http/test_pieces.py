"""Long answers are made outside the event loop, sent in pieces, and limited."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from http_servers import Running
from starlette.responses import StreamingResponse

from skipdec.runtime.serving.http.completions import by_completion, run_beside
from skipdec.runtime.serving.http.documents import event, json_answer
from skipdec.runtime.serving.http.logs import RequestRecord
from skipdec.runtime.serving.http.protocol import ApiError
from skipdec.runtime.tokens.outputs import StreamDelta

LONG: dict[str, Any] = {"max_tokens": 50, "ignore_eos": True, "temperature": 0}


def test_an_answer_is_made_and_encoded_outside_the_event_loop() -> None:
    numbers = list(range(100_000))

    def make() -> tuple[dict[str, object], Iterator[object], object]:
        return {"id": "a"}, ({"index": index, "numbers": numbers} for index in range(30)), None

    async def main() -> tuple[int, list[bytes | memoryview], str]:
        turns, task = 0, asyncio.create_task(json_answer(make))
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        answer = await task
        assert isinstance(answer, StreamingResponse)
        parts = [cast(bytes, part) async for part in answer.body_iterator]
        return turns, parts, answer.headers["content-length"]

    turns, parts, length = asyncio.run(main())
    assert turns > 20
    assert max(map(len, parts)) <= 1 << 16
    body = b"".join(parts)
    assert len(body) == int(length)
    choices = [{"index": index, "numbers": numbers} for index in range(30)]
    assert json.loads(body) == {"id": "a", "choices": choices, "usage": None}


def test_an_event_is_one_line_of_ascii() -> None:
    assert event({"text": "é\u2028\n"}) == b'data: {"text":"\\u00e9\\u2028\\n"}\n\n'


def test_prompts_with_too_many_log_probabilities_are_refused(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skipdec.runtime.serving.http.completions.MAX_REQUEST_LOGPROBS", 21)
    body: dict[str, Any] = {"echo": True, "logprobs": 20, "max_tokens": 0}
    assert server.complete(prompt=[5], **body).status_code == 200
    answer = server.complete(prompt=[5, 5], **body)
    assert answer.status_code == 400
    assert "2 tokens and logprobs 20 are up to 42" in answer.json()["error"]["message"]


def test_long_answers_equal_short_ones(server: Running) -> None:
    body = LONG | {"logprobs": 20, "echo": False}
    alone = server.complete(prompt="a", **body)
    many = server.complete(prompt=["a"] * 20, **body)
    assert "content-length" in alone.headers
    assert int(many.headers["content-length"]) == len(many.content) > 1 << 16
    (choice,) = alone.json()["choices"]
    assert [one | {"index": 0} for one in many.json()["choices"]] == [choice] * 20


def test_a_client_that_disconnects_as_its_request_is_ready_is_not_served() -> None:
    scope = {"method": "POST", "path": "/"}
    record = RequestRecord.begin(scope, "")

    @asynccontextmanager
    async def running_for(*_: object) -> AsyncIterator[None]:
        yield
        record.disconnected = True

    request = SimpleNamespace(receive=None, scope=scope)
    models = SimpleNamespace(running_for=running_for)
    with ThreadPoolExecutor(1) as threads, pytest.raises(ApiError, match="the client went"):
        asyncio.run(run_beside(request, models, threads, int))  # type: ignore[arg-type]


def test_deltas_a_slow_client_has_not_read_become_several_events() -> None:
    deltas = [StreamDelta(0, place % 2, (place,), "x", None, 3) for place in range(200)]
    chunks = list(by_completion(deltas))
    assert max(map(len, chunks)) < 50
    assert all(len({one.index for one in chunk}) == 1 for chunk in chunks)
    for index in range(2):
        mine = [one for chunk in chunks for one in chunk if one.index == index]
        assert mine == deltas[index::2]
