"""After an answer, a connection takes the next request or closes in time."""

from __future__ import annotations

import json
import logging
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from http_servers import Running, connected, serving

from skipdec.engines.host import process
from skipdec.runtime.serving.http.server import ServedBundle

EARLY = {  # answered before their bodies arrive
    "GET with a body": (b"GET /version HTTP/1.1\r\nContent-Length: 9\r\n", 200),
    "401": (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 9\r\n", 401),
    "404": (b"POST /nothing HTTP/1.1\r\nContent-Length: 9\r\n", 404),
    "405": (b"DELETE /v1/completions HTTP/1.1\r\nContent-Length: 9\r\nX-Key", 405),
    "chunked": (b"POST /nothing HTTP/1.1\r\nTransfer-Encoding: chunked\r\n", 404),
    "100-continue": (
        b"POST /nothing HTTP/1.1\r\nContent-Length: 9\r\nExpect: 100-continue\r\n",
        404,
    ),
}
KEY = b"Authorization: Bearer key\r\n"
END = b"Host: here\r\n\r\n"
NOT_HTTP = b"no chunk\r\n"


@pytest.fixture(scope="module")
def hasty(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Yield a server with a key and 0.2 s for a body, which discards at most 16 KiB."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("key")
    tiny = ServedBundle("tiny", bundle)
    with serving(tiny, api_key_file=keys, max_body=1024, read_timeout=0.2) as running:
        yield running


def early(name: str) -> tuple[bytes, int]:
    head, status = EARLY[name]
    if name == "405":
        return head.removesuffix(b"X-Key") + KEY + END, status
    return head + END, status


def received(client: socket.socket) -> tuple[int, dict[str, Any]]:
    response = HTTPResponse(client)
    response.begin()
    return response.status, json.loads(response.read())


def wait_for_close(client: socket.socket) -> None:
    with suppress(ConnectionError):
        while client.recv(4096):
            pass


@pytest.mark.parametrize("rest", [b"", b"x", NOT_HTTP], ids=["nothing", "a byte", "not HTTP"])
@pytest.mark.parametrize("name", EARLY)
def test_an_early_answered_request_without_an_end_is_closed(
    hasty: Running, name: str, rest: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    head, status = early(name)
    with connected(hasty) as client:
        client.sendall(head + rest)
        if rest != NOT_HTTP or name != "chunked":
            assert received(client)[0] == status
        wait_for_close(client)
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


@pytest.mark.parametrize("name", EARLY)
def test_a_request_may_follow_the_rest_of_an_early_answered_one(hasty: Running, name: str) -> None:
    head, status = early(name)
    rest = b"4\r\nabcd\r\n0\r\n\r\n" if name == "chunked" else b"123456789"
    with connected(hasty) as client:
        for _ in range(3):
            client.sendall(head)
            client.sendall(rest)
            assert received(client)[0] == status


def test_a_body_with_two_lengths_closes_the_connection(server: Running) -> None:
    """A proxy that follows Content-Length would take the next request for a part of the body."""
    both = b"Content-Length: 20\r\nTransfer-Encoding: chunked\r\nContent-Type: text/plain\r\n"
    smuggled = b"GET /version HTTP/1.1\r\n" + END
    with connected(server) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\n" + both + END + b"0\r\n\r\n" + smuggled)
        response = HTTPResponse(client)
        response.begin()
        assert (response.status, response.getheader("connection")) == (400, "close")
        response.read()
        assert not client.recv(4096)


def test_an_endless_rest_of_a_request_is_cut(hasty: Running) -> None:
    with connected(hasty) as client:
        client.sendall(b"POST /nothing HTTP/1.1\r\nContent-Length: 99999999\r\n" + END)
        with pytest.raises(ConnectionError):
            client.sendall(bytes(90_000_000))


def test_a_body_that_is_not_http_is_answered_400(
    hasty: Running, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + KEY + END
    with connected(hasty) as client:
        client.sendall(head + b"1\r\n{\r\n")
        client.sendall(NOT_HTTP)
        response = HTTPResponse(client)  # uvicorn's answer
        response.begin()
        assert response.status == 400
        response.read()
        wait_for_close(client)
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


def test_a_disconnect_within_a_body_logs_no_error(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(server) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 9\r\n" + END + b"{")
    server.wait_until(lambda figures: any("disconnected" in name for name in figures))
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


@pytest.mark.parametrize("name", EARLY)
def test_the_server_stops_despite_an_early_answered_request(bundle: Path, name: str) -> None:
    head, _ = early(name)
    with ExitStack() as stack:
        running = stack.enter_context(serving(ServedBundle("tiny", bundle), read_timeout=0.2))
        client = stack.enter_context(connected(running))
        client.sendall(head + b"x")
        received(client)
        running.server.stop()
        wait_for_close(client)


@pytest.mark.parametrize(
    ("limits", "wanted", "now"),
    [
        ((10, 20), 15, 15),
        ((10, 20), 30, 20),
        ((10, 20), 5, 10),
        ((10, 10), 30, 10),
        ((10, resource.RLIM_INFINITY), 30, 30),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 30, 30),
    ],
)
def test_the_limit_of_open_files_is_raised_as_far_as_allowed(
    limits: tuple[int, int], wanted: int, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: calls.append(both))
    assert process.raise_descriptor_limit(wanted) == now
    assert calls == ([(now, limits[1])] if limits[0] not in (resource.RLIM_INFINITY, now) else [])
