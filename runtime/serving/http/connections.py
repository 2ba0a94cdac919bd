"""Connections that are given up: whose client sends no request, or takes no answer, in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .errors import ApiError


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with limits that it lacks, in seconds.

    ``head_timeout``: from a connection's first moment, or the first byte of a further request,
    until its line and headers are whole, else 408. ``write_timeout``: in which a client takes so
    much of what waits for it that more can be sent, else the connection is cut.
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401  (uvicorn's own)
        head_timeout: float,
        write_timeout: float,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(*args, **kwargs)
        self._head = _Timer(self.loop, head_timeout, self._refuse_head)
        self._write = _Timer(self.loop, write_timeout, lambda: self.transport.abort())

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol."""
        super().connection_made(transport)
        self._head.start()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._head.start()
        else:
            self._head.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._head.stop()
        self._write.stop()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        super().pause_writing()
        self._write.start()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        super().resume_writing()
        self._write.stop()

    def _refuse_head(self) -> None:
        if self.transport.is_closing():
            return
        seconds = f"{self._head.seconds:g}"
        error = ApiError(408, f"the request's headers did not come within {seconds} s").response()
        headers = [*error.raw_headers, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=error.status_code, headers=headers),
            h11.Data(data=bytes(error.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class _Timer:
    """Calls once, ``seconds`` after its start, unless it is stopped before."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, call: Callable[[], None]
    ) -> None:
        self.seconds = seconds
        self._loop = loop
        self._call = call
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin, unless it has begun."""
        if self._handle is None:
            self._handle = self._loop.call_later(self.seconds, self._call)

    def stop(self) -> None:
        """Call nothing."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
