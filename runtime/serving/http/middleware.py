"""Middleware of every request: its record and log line, keys, a limit on the body.

Plain ASGI: a middleware that buffers or wraps messages in tasks would hide that a client has gone.
"""

from __future__ import annotations

import asyncio
import re
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .config import ServerConfig
from .guard.connections import REFUSED, crowded
from .guard.keys import ApiKeys
from .metrics import Metrics
from .protocol.errors import ApiError, unavailable
from .watch.logs import REQUESTS, printable
from .watch.record import RequestRecord
from .watch.traces import trace

_DISCARDED = 16  # times the limit of a body
_REQUEST_ID = re.compile(r"[\w.:-]{1,100}", re.ASCII)


class RecordMiddleware:
    """Gives each request an id, its client's own if that is a sound one, and logs how it ended."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        record = RequestRecord.begin(
            scope, given if _REQUEST_ID.fullmatch(given) else f"req-{uuid4().hex}"
        )

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                headers["x-request-id"] = record.request_id
                headers["x-content-type-options"] = "nosniff"
                message["headers"] = headers.raw
            await send(message)

        try:
            await self._app(scope, receive, sent)
        finally:
            failed = "disconnected" if record.gone else record.error
            if failed is not None:
                self._metrics.fail(record.model, failed)
            trace(scope, record)
            path = printable(record.path).replace(" ", "%20")
            REQUESTS.info("%s %s", record.method, path, extra={"fields": record.fields()})


class CutMiddleware:
    """Ends requests in order that the server's end cancels, once all texts have ended.

    Bodies that are still on their way then are answered 503; answers that their clients don't take
    are cut.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def sent(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, sent)
        except asyncio.CancelledError:
            RequestRecord.of(scope).error = "unavailable"
            if not has_begun:
                error = unavailable("the server was shut down before the request was there")
                await error.response()(scope, receive, send)


class RoomMiddleware:
    """Answers 503 on a connection beyond the limit; /health/ is answered there, too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection."""
        is_refused = scope["type"] == "http" and scope["state"].get(REFUSED, False)
        if is_refused and not scope["path"].startswith("/health/"):
            RequestRecord.of(scope).error = "too_many_connections"
            await crowded().response()(scope, receive, send)
            return
        await self._app(scope, receive, send)


class KeyMiddleware:
    """Answers 401 where a key is needed and none of ours is given."""

    def __init__(self, app: ASGIApp, keys: ApiKeys, config: ServerConfig) -> None:
        self._app = app
        self._keys = keys
        self._prefixes = ("/v1/", "/metrics") if config.protect_metrics else ("/v1/",)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection."""
        if scope["type"] == "http" and scope["path"].startswith(self._prefixes):
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not self._keys.accept(given):
                RequestRecord.of(scope).error = "invalid_api_key"
                error = ApiError(
                    401,
                    "the API key is missing or unknown; send Authorization: Bearer KEY",
                    "authentication_error",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
                await error.response()(scope, receive, send)
                return
            record = RequestRecord.of(scope)
            record.client = self._keys.client(given) or record.client
        await self._app(scope, receive, send)


class BodyLimitMiddleware:
    """Raises ApiError 413 while a body is read that is too long, whatever its headers say."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        is_too_long = declared.isdigit() and int(declared) > self._limit
        received = 0

        async def limited() -> Message:
            nonlocal received, is_too_long
            while True:
                message = await receive()
                received += len(message.get("body", b""))
                is_too_long |= received > self._limit
                if not is_too_long:
                    return message
                # A client that still sends when the connection is closed sees a reset, no answer:
                # what comes is thrown away, for a while.
                if not message.get("more_body", False) or received > _DISCARDED * self._limit:
                    raise self._too_long()

        await self._app(scope, limited, send)

    def _too_long(self) -> ApiError:
        return ApiError(
            413,
            f"the body is longer than {self._limit:,} bytes; send several requests",
            code="body_too_long",
            headers={"Connection": "close"},
        )
