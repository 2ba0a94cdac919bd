"""HTTP/1.1 connections: their number, their states, and how long each state may last."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Sized
from contextlib import suppress
from time import monotonic
from typing import Any, Literal

import h11
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

from .config import ServerConfig
from .protocol import ApiError, unavailable
from .watch import SERVER

REFUSED = "is_refused"  # in a request's state: its connection is one too many
SPARE = 32  # connections beyond the limit that are there at once, for as long as a 503 takes

_REFUSED_SECONDS = 2.0  # for the request of a connection that is one too many
_ANSWERED_SECONDS = 5.0  # for the rest of a request that was answered before it had come
_ANSWERED_BODIES = 16  # times the limit of a body, of which the rest is discarded

_SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_RETRY_SECONDS = 0.1
_FULL_SECONDS = 0.01
_LOG_SECONDS = 60.0  # between two warnings

Phase = Literal["head", "answer", "rest", "idle"]


class ConnectionRoom:
    """Admits up to ``limit`` connections; at the limit, the one that waits for longest is closed.

    One that waits has no whole request: it is idle, slow, or its request was answered early. A
    connection whose answer is being made or read is never closed for others. One that is refused
    is not counted: it stays for as long as its 503 takes.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._admitted: set[BoundedProtocol] = set()
        self._waiting: dict[BoundedProtocol, None] = {}  # the longest waits first

    def admit(self, connection: BoundedProtocol) -> bool:
        """Let a connection in if there is room, or if another one can be closed for it."""
        if len(self._admitted) >= self.limit and not self.close_one():
            return False
        self._admitted.add(connection)
        return True

    def close_one(self) -> bool:
        """Close the connection that waits for longest; False if none waits."""
        oldest = next(iter(self._waiting), None)
        if oldest is None:
            return False
        self.leave(oldest)
        oldest.give_up()
        return True

    def leave(self, connection: BoundedProtocol) -> None:
        """Forget a connection; idempotent."""
        self._admitted.discard(connection)
        self._waiting.pop(connection, None)

    def mark(self, connection: BoundedProtocol, *, waits: bool) -> None:
        """Note whether an admitted connection waits for a request now."""
        if not waits:
            self._waiting.pop(connection, None)
        elif connection in self._admitted:
            self._waiting.setdefault(connection)


def crowded() -> ApiError:
    """Return the answer where all connections are in use."""
    return unavailable("as many connections are in use as --max-connections allows")


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with an end to every state of a connection.

    head: the request's line and headers have not come whole. 408 after ``read_timeout``, counted
    from a connection's first moment or the first byte of a further request.
    answer: the request is being answered; its body has a time limit of its own (`read_body`).
    rest: the answer was sent before the whole request had come (401, 404, 405, a GET with a body).
    What still comes is discarded, within limits, since a client that is writing when its connection
    is closed may never see the answer.
    idle: the next request may come, for as long as uvicorn keeps connections alive.

    In every state a client has ``write_timeout`` seconds to take what waits for it; else the
    connection is cut.
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401  (uvicorn's own)
        limits: ServerConfig,
        room: ConnectionRoom,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._room = room
        self._is_refused = False
        self._phase: Phase | None = None
        self._discarded = 0  # bytes of the rest
        self._phase_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Any byte that the system does not take at once starts the time to write, also of what is
        # left when the connection is closed.
        transport.set_write_buffer_limits(high=0)
        self._is_refused = not self._room.admit(self)
        if self._is_refused:
            self.app_state = {**self.app_state, REFUSED: True}
        self._settle()

    @override
    def data_received(self, data: bytes) -> None:
        if self._phase == "rest":
            self._discarded += len(data)
            if self._discarded > _ANSWERED_BODIES * self._limits.max_body:
                self.close()
                return
        super().data_received(data)
        self._settle()

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._settle()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, unless an answer has begun; then close the connection."""
        if self._phase == "answer":  # the body is not HTTP: nobody waits for its answer any more
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._refuse(ApiError(400, f"{msg} Send HTTP/1.1."))
        self.close()

    @override
    def timeout_keep_alive_handler(self) -> None:
        self.close()

    @override
    def shutdown(self) -> None:
        if self._phase == "answer":
            super().shutdown()
        else:
            self.close()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._enter(None)
        self._stop_write_timer()
        self._room.leave(self)
        super().connection_lost(exc)

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(
            self._limits.write_timeout, lambda: self.transport.abort()
        )

    @override
    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_timer()
        self._settle()

    def close(self) -> None:
        """Send what waits, then close; idempotent, in every state of h11's machine."""
        self._enter(None)
        self._room.mark(self, waits=False)
        self.transport.close()

    def give_up(self) -> None:
        """Close it for another connection, with an answer if a request has begun to come."""
        if self._phase == "head" and self._has_begun:
            self._refuse(crowded())
        self.close()

    @property
    def _has_begun(self) -> bool:
        """True if a part of a request's head has come."""
        return bool(self.conn.trailing_data[0])

    def _settle(self) -> None:
        """Enter the phase that h11's state and the bytes received make."""
        if self.transport.is_closing():
            self._enter(None)
            return
        match self.conn.our_state:
            case h11.SEND_RESPONSE | h11.SEND_BODY:
                self._enter("answer")
            case h11.DONE:
                self._enter("rest")
            case h11.IDLE if self.cycle is None or self._has_begun:
                self._enter("head")
            case h11.IDLE if not self._is_refused:
                self._enter("idle")
            case _:  # refused and answered, or broken
                self.close()
                return
        self._room.mark(self, waits=self._phase != "answer" and not self.flow.write_paused)

    def _enter(self, phase: Phase | None) -> None:
        """Start the time of ``phase``; a byte now and then does not prolong one that has begun."""
        if phase == self._phase:
            return
        self._phase, self._discarded = phase, 0
        if self._phase_timer is not None:
            self._phase_timer.cancel()
            self._phase_timer = None
        reading = self._limits.read_timeout
        match phase:
            case "head":
                seconds = min(reading, _REFUSED_SECONDS) if self._is_refused else reading
                self._phase_timer = self.loop.call_later(seconds, self._refuse_head, seconds)
            case "rest":
                seconds = min(reading, _ANSWERED_SECONDS)
                self._phase_timer = self.loop.call_later(seconds, self.close)
            case "idle":
                self._phase_timer = self.loop.call_later(self.timeout_keep_alive, self.close)

    def _refuse_head(self, seconds: float) -> None:
        self._refuse(ApiError(408, f"the request's headers did not come within {seconds:g} s"))
        self.close()

    def _refuse(self, error: ApiError) -> None:
        """Answer in place of the application."""
        answer = error.response()
        headers = [*answer.raw_headers, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=answer.status_code, headers=headers),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


class Acceptor:
    """Accepts connections at a listening socket until it is stopped.

    asyncio's own server accepts all that wait before it looks at the first, and logs each one for
    which no descriptor is left. This one leaves connections in the system's backlog while there is
    no room for another.
    """

    def __init__(
        self,
        listening: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        connections: Sized,
        room: ConnectionRoom,
    ) -> None:
        """``connections``: all that are open, those that are refused too."""
        self._listening = listening
        self._make_protocol = make_protocol
        self._connections = connections
        self._room = room
        self._warned = -_LOG_SECONDS  # of time.monotonic

    async def run(self) -> None:
        """Accept until it is cancelled; then nobody listens any more."""
        self._listening.setblocking(False)
        with self._listening:
            while True:
                if len(self._connections) >= self._room.limit + SPARE:
                    await asyncio.sleep(_FULL_SECONDS)
                else:
                    await self._accept()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            connection, _ = await loop.sock_accept(self._listening)
        except OSError as error:  # else of a client that has gone already
            if error.errno in _SHORT:
                self._warn(error)
                self._room.close_one()
                await asyncio.sleep(_RETRY_SECONDS)
            return
        with suppress(OSError):  # its client has gone
            # Each event of a stream is a packet at once; asyncio only does so where the listening
            # socket names its protocol.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(OSError):
            await loop.connect_accepted_socket(self._make_protocol, connection)

    def _warn(self, error: OSError) -> None:
        now = monotonic()
        if now - self._warned < _LOG_SECONDS:
            return
        self._warned = now
        SERVER.warning(
            "no connection can be accepted now: %s; those that wait are closed (see ulimit -n)",
            error.strerror,
        )
