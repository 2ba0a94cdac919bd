"""Middleware of every request: its record and log line, keys, and the limit on its body.

It is plain ASGI, because middleware that buffers messages or wraps them in tasks would hide that a
client has disconnected. The server runs without WebSockets and lifespan events, so every call is an
HTTP request.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import re
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ....engines.documents import read_file
from ....engines.errors import UsageError
from .config import ServerConfig
from .logs import RequestRecord
from .metrics import Metrics
from .protocol import ApiError, unavailable
from .traces import trace

VARIABLE = "SKIPDEC_API_KEY"
_MAX_BYTES = 1 << 20  # of a file of keys
_DISCARDED = 16  # how many times the limit on a body is read and discarded
_DISCARDED_SECONDS = 5.0
_REQUEST_ID = re.compile(r"[\w.:-]{1,100}", re.ASCII)


class ApiKeys:
    """The API keys of which a request needs one; without any, every request is allowed."""

    def __init__(self, keys: tuple[str, ...] = ()) -> None:
        self._keys = tuple(key.encode() for key in keys)

    @classmethod
    def read(cls, path: Path | None) -> ApiKeys:
        """Read one key per line of the file ``path`` and of $SKIPDEC_API_KEY; # begins a comment.

        Raises UsageError for a given file or variable without a key, so that nobody serves without
        keys by mistake, and for a file that is not text in UTF-8.
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
        """Return a name for the owner of the header's key, the same for all requests with it.

        Returns None for an unknown key, and if none is needed, because a client could then take
        another name for each request.
        """
        _, _, given = authorization.partition(b" ")
        # All keys are compared, so that the time does not reveal which one it is.
        matches = [hmac.compare_digest(key, given.strip()) for key in self._keys]
        return f"key {matches.index(True)}" if any(matches) else None

    def accept(self, authorization: bytes) -> bool:
        """Return True if the header ``Bearer KEY`` has one of the keys, or none is needed."""
        scheme = authorization.partition(b" ")[0]
        is_known = self.client(authorization) is not None
        return not self._keys or (is_known and scheme.lower() == b"bearer")


def _keys(text: str, subject: str, remedy: str) -> list[str]:
    """Return the keys in ``text``. Raises UsageError without any, or if one can't be sent."""
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
            f"write one key per line, or {remedy} to serve without keys",
        )
    return keys


class RecordMiddleware:
    """Gives each request an id, its client's if that is valid, and logs how it ended.

    An unexpected error is answered without details and raised again, so that uvicorn logs it. HEAD
    is answered like GET; uvicorn omits the body.

    When all texts have ended, the server's shutdown cancels the remaining requests: those whose
    bodies are still arriving are answered 503, and answers that clients don't read are cut.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        incoming = Headers(scope=scope)
        given = incoming.get("x-request-id", "")
        # A proxy in front may have found another end of the body than we did (RFC 9112, 6.1).
        is_ambiguous = "content-length" in incoming and "transfer-encoding" in incoming
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

        async def end(error: ApiError) -> None:
            record.error = error.code
            if record.status is None:
                await error.response()(scope, receive, sent)

        served = {**scope, "method": "GET"} if record.method == "HEAD" else scope
        try:
            await self._app(served, receive, sent)
        except asyncio.CancelledError:
            await end(unavailable("the server was shut down before the request was there"))
        except Exception:
            # uvicorn closes the connection of a request that raises. Without the header a client
            # would send its next request on it and be reset.
            headers = {"Connection": "close"}
            text = "internal error"
            await end(ApiError(500, text, "server_error", code="internal_error", headers=headers))
            raise
        finally:
            self._metrics.end(record)
            trace(served, record)
            record.log()


class KeyMiddleware:
    """Answers 401 without a valid key: /v1/ needs one, and so does /metrics if configured."""

    def __init__(self, app: ASGIApp, keys: ApiKeys, config: ServerConfig) -> None:
        self._app = app
        self._keys = keys
        self._prefixes = ("/v1/", "/metrics") if config.protect_metrics else ("/v1/",)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        record, path = RequestRecord.of(scope), scope["path"]
        authorization = dict(scope["headers"]).get(b"authorization", b"")
        if path.startswith(self._prefixes) and not self._keys.accept(authorization):
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


class BodyMiddleware:
    """Limits bodies, and discards the rest of a body if its request is answered early.

    Reading a body that is too long raises ApiError 413. A client that is still sending when its
    connection is closed sees a reset instead of the answer, so the rest is first discarded, for up
    to ``seconds`` from the request's beginning; then the connection is closed.
    """

    def __init__(self, app: ASGIApp, limit: int, seconds: float) -> None:
        self._app = app
        self._limit = limit
        self._seconds = min(seconds, _DISCARDED_SECONDS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        headers = Headers(scope=scope)
        declared = headers.get("content-length", "0")
        length, received = int(declared) if declared.isdigit() else 0, 0
        has_ended = not length and "transfer-encoding" not in headers
        deadline = asyncio.get_running_loop().time() + self._seconds

        async def take() -> Message:
            nonlocal received, has_ended
            message = await receive()
            received += len(message.get("body", b""))
            has_ended |= not message.get("more_body", False)  # also after a disconnect
            return message

        async def limited() -> Message:
            message = await take()
            if max(length, received) > self._limit:
                problem = f"the body is longer than {self._limit:,} bytes; send several requests"
                raise ApiError(413, problem, code="body_too_long")
            return message

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start" and not has_ended:
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(deadline):
                        while not has_ended and received <= _DISCARDED * self._limit:
                            await take()
                if not has_ended:
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        await self._app(scope, limited, sent)
