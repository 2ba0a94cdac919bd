"""Acceptor: takes connections in one by one, as many as there are file descriptors for."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Sized
from contextlib import suppress
from time import monotonic

from ..watch.logs import SERVER
from .connections import ConnectionRoom

SPARE = 32  # connections beyond the limit that are there at once, for as long as a 503 takes

_SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_RETRY_SECONDS = 0.1
_FULL_SECONDS = 0.01
_LOG_SECONDS = 60.0  # between two warnings


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
