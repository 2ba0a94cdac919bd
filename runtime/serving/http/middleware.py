"""Middleware of every request: its record and log line, keys, a limit on the body.

Plain ASGI: a middleware that buffers or wraps messages in tasks would hide that a client has gone.
The server runs without WebSockets and lifespan events, so every call is an HTTP request.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import re
from pathlib import Path
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ....engines.documents import read_file
from ....engines.errors import UsageError
from .config import ServerConfig
from .connections import REFUSED, crowded
from .protocol import ApiError, unavailable
from .watch import Metrics, RequestRecord, trace

VARIABLE = "SKIPDEC_API_KEY"
_MAX_BYTES = 1 << 20  # of a file of keys
_DISCARDED = 16  # times the limit of a body
_REQUEST_ID = re.compile(r"[\w.:-]{1,100}", re.ASCII)


class ApiKeys:
    """The keys of which a request needs one; none at all: every request is let in."""

    def __init__(self, keys: tuple[str, ...] = ()) -> None:
        self._keys = tuple(key.encode() for key in keys)

    @classmethod
    def read(cls, path: Path | None) -> ApiKeys:
        """Read one key a line of the file ``path`` and of $SKIPDEC_API_KEY; # begins a comment.

        Raises UsageError for a file or a variable that is given and holds no key, so that nobody
        serves without keys by mistake, and for a file that is not text in UTF-8.
        """
        keys: list[str] = []
        if (variable := os.environ.get(VARIABLE)) is not None:
            keys += _keys(variable, f"${VARIABLE}", "unset it")
        if path is not None:
            content = read_file(path, UsageError, limit=_MAX_BYTES)
            try:
                text = content.decode("utf-8-sig")
            except UnicodeDecodeError as error:
                raise UsageError(
                    str(path), f"is not text in UTF-8 ({error}); save it as UTF-8"
                ) from error
            keys += _keys(text, str(path), "leave the file out")
        return cls(tuple(dict.fromkeys(keys)))

    def client(self, authorization: bytes) -> str | None:
        """Return a name for whoever has the header's key, the same for all of its requests.

        None for a key that is not ours, and where none is needed: a name that clients choose by
        themselves would be another one for each request.
        """
        _, _, given = authorization.partition(b" ")
        # All keys are compared, so that the time says nothing of which one it is.
        matches = [hmac.compare_digest(key, given.strip()) for key in self._keys]
        return f"key {matches.index(True)}" if any(matches) else None

    def accept(self, authorization: bytes) -> bool:
        """Return True if the header ``Bearer KEY`` has one of the keys, or none is needed."""
        scheme = authorization.partition(b" ")[0]
        is_known = self.client(authorization) is not None
        return not self._keys or (is_known and scheme.lower() == b"bearer")


def _keys(text: str, subject: str, remedy: str) -> list[str]:
    """Return the keys of ``text``. Raises UsageError for none and for one that can't be sent."""
    lines = [line.strip() for line in text.splitlines()]
    keys = []
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        if not line.isprintable():
            raise UsageError(subject, f"line {number} has control characters; write plain text")
        keys.append(line)
    if not keys:
        raise UsageError(
            subject,
            "has no key: it is empty, or its lines begin with #, which makes them comments; "
            f"write a key a line, or {remedy} to serve without keys",
        )
    return keys


class RecordMiddleware:
    """Gives each request an id, its client's own if that is a sound one, and logs how it ended."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        asked = Headers(scope=scope)
        given = asked.get("x-request-id", "")
        # A proxy before us may have read another end of the body than we did (RFC 9112, 6.1).
        is_ambiguous = "content-length" in asked and "transfer-encoding" in asked
        record = RequestRecord.begin(
            scope, given if _REQUEST_ID.fullmatch(given) else f"req-{uuid4().hex}"
        )

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                headers["x-request-id"] = record.request_id
                headers["x-content-type-options"] = "nosniff"
                if is_ambiguous:
                    headers["connection"] = "close"
                message["headers"] = headers.raw
            await send(message)

        try:
            await self._app(scope, receive, sent)
        finally:
            failed = "disconnected" if record.gone else record.error
            if failed is not None:
                self._metrics.fail(record.model, failed)
            trace(scope, record)
            record.log()


class CutMiddleware:
    """Ends requests in order that the server's end cancels, once all texts have ended.

    Bodies that are still on their way then are answered 503; answers that their clients don't take
    are cut.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
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


class AdmissionMiddleware:
    """Answers 503 on a connection beyond the limit, and 401 where one of our keys is missing.

    /health is answered on every connection. /v1/ needs a key, and so does /metrics if asked for.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys, config: ServerConfig) -> None:
        self._app = app
        self._keys = keys
        self._prefixes = ("/v1/", "/metrics") if config.protect_metrics else ("/v1/",)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        record, path = RequestRecord.of(scope), scope["path"]
        authorization = dict(scope["headers"]).get(b"authorization", b"")
        if scope["state"].get(REFUSED, False) and not path.startswith("/health"):
            record.error = "too_many_connections"
            await crowded().response()(scope, receive, send)
        elif path.startswith(self._prefixes) and not self._keys.accept(authorization):
            record.error = "invalid_api_key"
            error = ApiError(
                401,
                "the API key is missing or unknown; send Authorization: Bearer KEY",
                "authentication_error",
                code=record.error,
                headers={"WWW-Authenticate": "Bearer"},
            )
            await error.response()(scope, receive, send)
        else:
            record.client = self._keys.client(authorization) or record.client
            await self._app(scope, receive, send)


class BodyLimitMiddleware:
    """Raises ApiError 413 while a body is read that is too long, whatever its headers say."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
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
                    raise ApiError(
                        413,
                        f"the body is longer than {self._limit:,} bytes; send several requests",
                        code="body_too_long",
                        headers={"Connection": "close"},
                    )

        await self._app(scope, limited, send)
