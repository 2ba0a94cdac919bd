"""Connections: each ends in time whatever its client does, and busy ones alone use up the limit."""

from __future__ import annotations

import asyncio
import errno
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

from skipdec.engines.errors import UsageError
from skipdec.engines.host import process
from skipdec.runtime.serving.http import server as server_module
from skipdec.runtime.serving.http.connections import Acceptor, ConnectionRoom
from skipdec.runtime.serving.http.server import ServedBundle

EARLY = {  # answered before their bodies have come
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
    """A server with a key, a fifth of a second for each client, and 16 KiB of what is discarded."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("key")
    tiny, hurry = ServedBundle("tiny", bundle), {"read_timeout": 0.2, "write_timeout": 0.2}
    with serving(tiny, api_key_file=keys, max_body=1024, **hurry) as running:
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
def test_a_request_answered_early_and_never_ended_is_closed(
    hasty: Running, name: str, rest: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    head, status = early(name)
    with connected(hasty) as client:
        client.sendall(head)
        assert received(client)[0] == status
        client.sendall(rest)
        wait_for_close(client)
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


@pytest.mark.parametrize("name", EARLY)
def test_the_rest_of_a_request_answered_early_precedes_the_next(hasty: Running, name: str) -> None:
    head, status = early(name)
    rest = b"4\r\nabcd\r\n0\r\n\r\n" if name == "chunked" else b"123456789"
    with connected(hasty) as client:
        for _ in range(3):
            client.sendall(head)
            assert received(client)[0] == status
            client.sendall(rest)
        wait_for_close(client)


def test_two_ends_of_a_body_close_the_connection_once_it_is_answered(server: Running) -> None:
    """A proxy that heeds Content-Length would take the next request for the rest of the body."""
    both = b"Content-Length: 20\r\nTransfer-Encoding: chunked\r\nContent-Type: text/plain\r\n"
    smuggled = b"GET /version HTTP/1.1\r\n" + END
    with connected(server) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\n" + both + END + b"0\r\n\r\n" + smuggled)
        response = HTTPResponse(client)
        response.begin()
        assert (response.status, response.getheader("connection")) == (400, "close")
        response.read()
        assert not client.recv(4096)


def test_a_rest_without_end_is_cut(hasty: Running) -> None:
    with connected(hasty) as client:
        client.sendall(b"POST /nothing HTTP/1.1\r\nContent-Length: 99999999\r\n" + END)
        assert received(client)[0] == 404
        with pytest.raises(ConnectionError):
            client.sendall(bytes(90_000_000))


def test_a_body_that_is_not_http_is_answered_400(
    hasty: Running, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + KEY + END
    with connected(hasty) as client:
        client.sendall(head + b"1\r\n{\r\n")
        client.sendall(NOT_HTTP)
        status, document = received(client)
        wait_for_close(client)
    assert (status, document["error"]["type"]) == (400, "invalid_request_error")
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


def test_a_client_that_goes_within_its_body_is_no_error(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(server) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 9\r\n" + END + b"{")
    server.wait_until(lambda figures: any("disconnected" in name for name in figures))
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


@pytest.mark.parametrize("name", EARLY)
def test_the_server_ends_whatever_was_answered_early(bundle: Path, name: str) -> None:
    head, _ = early(name)
    with ExitStack() as stack:
        running = stack.enter_context(serving(ServedBundle("tiny", bundle), read_timeout=0.2))
        client = stack.enter_context(connected(running))
        client.sendall(head)
        received(client)
        client.sendall(b"x")
        running.server.stop()
        wait_for_close(client)


@pytest.mark.parametrize("sent", [b"", b"G", early("404")[0], early("404")[0] + b"1"])
def test_connections_without_a_request_make_room(bundle: Path, sent: bytes) -> None:
    with serving(ServedBundle("tiny", bundle), max_connections=4) as running, ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(connected(running)).sendall(sent)
            with connected(running) as client:
                client.sendall(b"GET /version HTTP/1.1\r\n" + END)
                assert received(client)[0] == 200


def test_half_a_request_that_makes_room_is_answered_503(bundle: Path) -> None:
    tiny = ServedBundle("tiny", bundle)
    with serving(tiny, max_connections=1) as running, connected(running) as slow:
        slow.sendall(b"GET /version HT")
        with connected(running) as client:
            client.sendall(b"GET /version HTTP/1.1\r\n" + END)
            assert received(client)[0] == 200
        assert received(slow)[0] == 503
        wait_for_close(slow)


def test_busy_connections_up_to_the_limit_leave_503_and_health(bundle: Path) -> None:
    tiny = ServedBundle("tiny", bundle)
    with serving(tiny, max_connections=4) as running:
        running.http.close()  # else one of its connections is idle, and makes room
        with ExitStack() as stack:
            for _ in range(4):
                client = stack.enter_context(connected(running))
                client.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 9\r\n" + END)
            for path, status in (("version", 503), ("health", 200), ("health/ready", 200)):
                with connected(running) as client:
                    client.sendall(f"GET /{path} HTTP/1.1\r\n".encode() + END)
                    answer, document = received(client)
                    wait_for_close(client)
                assert answer == status
                assert ("error" in document) == (status == 503)
        with connected(running) as client:
            client.sendall(b"GET /version HTTP/1.1\r\n" + END)
            assert received(client)[0] == 200


class _Accepted(asyncio.Protocol):
    def __init__(self, made: asyncio.Future[socket.socket]) -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._made.set_result(transport.get_extra_info("socket"))


def test_connections_are_accepted_again_after_descriptors_were_short(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        accept, failures = loop.sock_accept, [errno.EMFILE, errno.ECONNABORTED, errno.ENFILE]

        async def failing(listening: socket.socket) -> tuple[socket.socket, Any]:
            if failures:
                raise OSError(failures.pop(), "too many open files")
            return await accept(listening)

        monkeypatch.setattr(loop, "sock_accept", failing)
        room, waiting, made = ConnectionRoom(8), _Connection(), loop.create_future()
        assert room.admit(waiting)
        room.mark(waiting, waits=True)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            run = Acceptor(listening, lambda: _Accepted(made), [], room).run()
            accepting = asyncio.create_task(run)
            with socket.create_connection(listening.getsockname()):
                accepted = await asyncio.wait_for(made, 60)
                # Events of a stream are sent at once.
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            accepting.cancel()
            await asyncio.wait([accepting])
        assert waiting.is_closed

    asyncio.run(main())
    assert caplog.text.count("no connection can be accepted now") == 1


class _Connection:
    is_closed = False

    def give_up(self) -> None:
        self.is_closed = True


def test_room_is_made_by_closing_the_connection_that_waits_for_longest() -> None:
    room = ConnectionRoom(2)
    first, second, third, fourth = (_Connection() for _ in range(4))
    assert room.admit(first)
    assert room.admit(second)
    assert not room.admit(third)
    room.mark(third, waits=True)  # it was not admitted, and is never closed for others
    room.mark(second, waits=True)
    room.mark(first, waits=True)
    room.mark(second, waits=True)
    assert room.admit(third)
    assert [one.is_closed for one in (first, second, third)] == [False, True, False]
    room.mark(first, waits=False)
    assert not room.admit(fourth)
    room.leave(first)
    assert room.admit(fourth)


@pytest.mark.parametrize(
    ("limits", "allowed"),
    [((1024, 4096), 1024), ((256, 256), 158), ((256, 512), 414), ((4096, 4096), 1024)],
)
def test_connections_are_limited_by_open_files(
    limits: tuple[int, int],
    allowed: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(server_module, "open_descriptors", lambda: 18)
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    assert server_module._connection_limit(1024, workers=2) == allowed
    assert ("ulimit -Hn" in caplog.text) == (allowed < 1024)


def test_too_few_open_files_for_one_connection_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    with pytest.raises(UsageError, match="is 64, but"):
        server_module._connection_limit(1024, workers=1)


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
