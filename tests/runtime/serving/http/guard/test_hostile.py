"""Slow, greedy, broken or disconnected clients do not disturb others."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Event
from time import sleep
from typing import Any

import pytest
from http_servers import Running, connected, held_prompts, held_steps, logged, serving

from skipdec.runtime.serving.http.logs import REQUESTS
from skipdec.runtime.serving.http.models import ServedModels
from skipdec.runtime.serving.http.protocol import CompletionRequest
from skipdec.runtime.serving.http.server import ServedBundle
from skipdec.runtime.serving.stream import RequestStream

LONG: dict[str, Any] = {"model": "tiny", "prompt": "a", "max_tokens": 50, "ignore_eos": True}
RUNNING = 'skipdec_requests_running{model="tiny"}'
WAITING = 'skipdec_requests_waiting{model="tiny"}'
RESERVED = 'skipdec_kv_bytes{kind="reserved",model="tiny"}'
SUBMITTED = 'skipdec_requests_total{model="tiny",state="submitted"}'
ABORTED = 'skipdec_requests_total{model="tiny",state="aborted"}'
DISCONNECTED = 'skipdec_request_failed_total{model="tiny",reason="disconnected"}'
ENDED = ("skipdec_request_success_total", "skipdec_e2e_request_seconds_count")
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: here\r\n"


@pytest.fixture(scope="module")
def hasty(bundle: Path) -> Iterator[Running]:
    """Yield a server that waits 0.2 s for a body."""
    with serving(ServedBundle("tiny", bundle), read_timeout=0.2) as running:
        yield running


def answered(client: socket.socket) -> tuple[int, dict[str, Any]]:
    """Return status and document of the next answer, after which the connection must close."""
    response = HTTPResponse(client)
    response.begin()
    document = json.loads(response.read())
    assert client.recv(1) == b""
    return response.status, document


def test_an_incomplete_body_is_answered_408_and_closed(hasty: Running) -> None:
    with connected(hasty) as client:
        client.sendall(HEAD + b"Content-Length: 10\r\n\r\n{")
        status, document = answered(client)
    assert status == 408
    assert document["error"]["type"] == "invalid_request_error"
    assert "within 0.2 s" in document["error"]["message"]


def test_slow_bytes_do_not_extend_the_timeout(hasty: Running) -> None:
    with connected(hasty) as client:
        client.settimeout(0.05)
        client.sendall(HEAD + b"Content-Length: 1000\r\n\r\n")
        received = b""
        for _ in range(1000):
            try:
                client.sendall(b"{")
                received += client.recv(4096)
            except TimeoutError:
                continue
            except OSError:
                break
            break
    assert received.startswith(b"HTTP/1.1 408")


def test_a_complete_request_may_wait_for_its_answer(hasty: Running) -> None:
    with ThreadPoolExecutor() as pool, held_steps():
        pending = pool.submit(hasty.complete, **LONG)
        hasty.wait_until(lambda figures: figures[RUNNING] == 1)
        sleep(0.5)  # longer than a body may take
        assert not pending.done()
    assert pending.result(60).status_code == 200


def test_empty_prompt_is_allowed_if_tokenizer_adds_a_first_token(
    server: Running,
) -> None:
    answer = server.complete(prompt="", max_tokens=1)
    assert answer.json()["usage"]["prompt_tokens"] == 1


def test_a_prompt_with_room_for_one_token_gets_one(server: Running) -> None:
    answer = server.complete(prompt=[5] * 63, max_tokens=1, ignore_eos=True)
    assert answer.json()["usage"]["completion_tokens"] == 1


def test_an_unexpected_error_is_answered_500_without_details(
    server: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(models: ServedModels, name: str | None) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(ServedModels, "named", fail)
    caplog.set_level(logging.INFO, REQUESTS.name)
    failed = 'skipdec_request_failed_total{model="",reason="internal_error"}'
    before = server.figures().get(failed, 0)
    answer = server.complete(prompt="a", headers={"X-Request-Id": "unexpected"})
    assert answer.headers["x-request-id"] == "unexpected"
    assert answer.headers["Connection"] == "close"  # as by uvicorn, so that no connection is reset
    assert answer.json()["error"] == {
        "message": "internal error",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }
    (line,) = logged(caplog, "unexpected")
    fields = getattr(line, "fields", {})
    assert (fields["status"], fields["error"]) == (500, "internal_error")
    assert server.figures()[failed] == before + 1


@contextmanager
def held_parsing() -> Iterator[list[bytes]]:
    """Hold the parsing of long bodies until the end; yield the bodies that have reached it."""
    parsed, may_go_on = list[bytes](), Event()
    parse = CompletionRequest.parse

    def held(body: bytes) -> CompletionRequest:
        if len(body) > 4096:
            parsed.append(body)
            may_go_on.wait()
        return parse(body)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CompletionRequest, "parse", held)
        try:
            yield parsed
        finally:
            may_go_on.set()


def test_answers_do_not_wait_for_long_bodies(server: Running) -> None:
    with ThreadPoolExecutor(41) as pool, held_parsing() as parsed:
        held = [pool.submit(server.complete, prompt="a" * 5000) for _ in range(40)]
        server.wait_for(lambda: len(parsed) > 0)
        assert pool.submit(server.complete, prompt="a", max_tokens=2).result(30).status_code == 200
        assert not any(one.done() for one in held)


def test_long_bodies_of_disconnected_clients_are_not_parsed(server: Running) -> None:
    disconnected = DISCONNECTED.replace("tiny", "")
    before = server.figures().get(disconnected, 0)
    body = json.dumps(LONG | {"prompt": "a" * 5000})
    with held_parsing() as parsed:
        clients = [HTTPConnection(server.url.removeprefix("http://")) for _ in range(40)]
        for client in clients:
            client.request("POST", "/v1/completions", body)
        server.wait_for(lambda: len(parsed) > 0)
        for client in clients:
            client.close()
        server.wait_until(lambda figures: figures.get(disconnected, 0) == before + 40)
    assert server.complete(prompt="a" * 5000).status_code == 400  # runs after the others
    assert len(parsed) < 40


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole"])
@pytest.mark.parametrize("phase", ["queued", "prefill", "decode"])
def test_a_disconnect_frees_the_slot_in_each_phase(
    server: Running,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    phase: str,
    stream: bool,
) -> None:
    caplog.set_level(logging.INFO, REQUESTS.name)
    body = LONG | {"prompt": f"{phase[0]}{stream:d}", "stream": stream}
    cancelled = Event()
    cancel = RequestStream.cancel

    def cancel_and_signal(one: RequestStream) -> None:
        cancel(one)
        if one.prompt == body["prompt"]:  # ended streams are cancelled, too
            cancelled.set()

    monkeypatch.setattr(RequestStream, "cancel", cancel_and_signal)
    before = server.figures()
    others = 1 if phase == "queued" else 0  # keeps the engine busy
    client = HTTPConnection(server.url.removeprefix("http://"))
    with ThreadPoolExecutor() as pool:
        with held_prompts() if phase == "prefill" else held_steps():
            texts = [pool.submit(server.complete, **LONG) for _ in range(others)]
            server.wait_until(lambda figures: figures[RUNNING] == others)
            client.request("POST", "/v1/completions", json.dumps(body), {"X-Request-Id": "gone"})
            name = {"queued": WAITING, "prefill": SUBMITTED, "decode": RUNNING}[phase]
            server.wait_until(lambda figures: figures[name] > before[name])
            client.close()
            assert cancelled.wait(60)  # before the text can end
        assert [text.result(60).status_code for text in texts] == [200] * others
    server.wait_until(
        lambda figures: figures.get(DISCONNECTED, 0) == before.get(DISCONNECTED, 0) + 1
    )
    server.wait_until(
        lambda figures: figures[WAITING] == figures[RUNNING] == figures[RESERVED] == 0
    )
    after = server.figures()
    assert after[ABORTED] == before[ABORTED] + 1
    ended = {name: after[name] - before.get(name, 0) for name in after if name.startswith(ENDED)}
    assert sum(ended.values()) == 2 * others
    (line,) = logged(caplog, "gone")
    assert vars(line)["fields"]["prompt_tokens"] >= 2
