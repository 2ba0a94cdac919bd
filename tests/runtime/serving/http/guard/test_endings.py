"""A request that the server's shutdown cancels gets an answer, unless one has begun."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.types import Message, Receive, Scope, Send

from skipdec.runtime.serving.http.metrics import Metrics
from skipdec.runtime.serving.http.middleware import RecordMiddleware
from skipdec.runtime.serving.http.models import ServedModels


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_cancelled_request_without_an_answer_is_answered_503(has_begun: bool) -> None:
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if has_begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        waits.set()
        await receive()

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    async def main() -> None:
        scope: Scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
        served = RecordMiddleware(app, Metrics(ServedModels(["tiny"]).stats))
        request = asyncio.create_task(served(scope, receive, send))
        await waits.wait()
        request.cancel()
        await request

    waits = asyncio.Event()
    asyncio.run(main())
    assert sent[0]["status"] == (200 if has_begun else 503)
    bodies = [json.loads(message["body"]) for message in sent[1:]]
    assert [body["error"]["code"] for body in bodies] == ([] if has_begun else ["unavailable"])
