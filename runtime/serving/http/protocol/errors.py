"""Errors as OpenAI's clients read them: a status, and an object ``error`` that says why."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.responses import JSONResponse

from .....engines.errors import (
    ClosedError,
    ConfigurationError,
    OverloadedError,
    SkipDecError,
    UsageError,
    brief,
)

_SUBJECT = re.compile(r"'?(\w+)'? is ")  # how a problem of a field begins


@dataclass(eq=False)
class ApiError(Exception):
    """An answer that is no result.

    ``kind``: OpenAI's ``type``. ``param``: the field that is wrong. ``code``: for programs.
    """

    status: int
    message: str
    kind: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, object]:
        """The body."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        """The whole answer."""
        return JSONResponse(self.document(), self.status, headers=dict(self.headers))


def api_error(error: SkipDecError) -> ApiError:
    """Translate an error of skipdec into an answer."""
    message = brief("; ".join(error.problems))
    match error:
        case OverloadedError():
            wait = {"Retry-After": str(math.ceil(error.retry_after))}
            return ApiError(429, message, "rate_limit_error", code="queue_full", headers=wait)
        case ClosedError():
            return unavailable(message)
        case ConfigurationError():
            found = _SUBJECT.match(error.problems[0])
            return ApiError(400, message, param=found and found[1])
        case UsageError():
            return ApiError(400, message, param=error.subject if error.subject.isalpha() else None)
    return ApiError(500, message, "server_error", code="engine_failed")


def unavailable(reason: str) -> ApiError:
    """Not now: loading, draining, closed. OpenAI's clients try again by themselves."""
    headers = {"Retry-After": "1"}
    return ApiError(503, reason, "service_unavailable", code="unavailable", headers=headers)
