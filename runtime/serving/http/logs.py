"""The record of each request, and the lines of the log that show it."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import perf_counter, time_ns
from typing import Any, Literal

from starlette.types import Scope
from typing_extensions import override

from ..stream import RequestTimes

_SERVING = __name__.rpartition(".http.")[0]  # the logger of all serving modules
REQUESTS = logging.getLogger(f"{__name__}.requests")
SERVER = logging.getLogger(f"{__name__}.server")

_MOST_PATH = 500  # characters that are kept
_USED = (  # fields of an answer's usage
    "prompt_tokens",
    "completion_tokens",
    "realised_depth",
    "passes",
    "draft_tokens",
    "accepted_draft_tokens",
)


@dataclass
class RequestRecord:
    """Facts about a request, never its prompt or text. Each part of the server adds some."""

    request_id: str
    method: str
    path: str
    start: float  # perf_counter seconds
    start_ns: int  # nanoseconds since 1970
    client: str = ""  # its address, or a name for its API key; clients take turns
    status: int | None = None  # None: nothing was answered
    disconnected: bool = False  # the client, before the end
    observed: bool = False  # its texts have ended and count in metrics
    model: str | None = None
    schedule: str | None = None  # as requested
    prompts: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    realised_depth: float | None = None
    passes: int | None = None  # this field and the next two are set if the engine drafts
    draft_tokens: int | None = None
    accepted_draft_tokens: int | None = None
    finish_reasons: tuple[str, ...] = ()
    error: str | None = None  # the error's code or kind
    texts: list[RequestTimes] = field(default_factory=list)  # one per queued prompt

    @classmethod
    def begin(cls, scope: Scope, request_id: str) -> RequestRecord:
        """Create the record of a request that arrives now; `of` finds it."""
        path = scope["path"][:_MOST_PATH]
        record = cls(request_id, scope["method"], path, perf_counter(), time_ns())
        record.client = (scope.get("client") or ("",))[0]
        _state(scope)["record"] = record
        return record

    @classmethod
    def of(cls, scope: Scope) -> RequestRecord:
        """Return the record of the request with this scope."""
        record: RequestRecord = _state(scope)["record"]
        return record

    @property
    def seconds(self) -> float:
        """Seconds since the request arrived."""
        return perf_counter() - self.start

    def use(self, usage: dict[str, Any]) -> None:
        """Copy the usage of an answer."""
        for name in _USED:
            setattr(self, name, usage.get(name))

    def fields(self) -> dict[str, Any]:
        """Return the known fields for a log line."""
        known = vars(self) | {"seconds": round(self.seconds, 4)}
        for name in ("start", "start_ns", "client", "texts", "observed"):
            del known[name]
        if self.realised_depth is not None:
            known["realised_depth"] = round(self.realised_depth, 3)
        return {name: value for name, value in known.items() if value not in (None, (), False)}

    def log(self) -> None:
        """Log the line of a request that has ended."""
        path = printable(self.path).replace(" ", "%20")
        REQUESTS.info("%s %s", self.method, path, extra={"fields": self.fields()})


def _state(scope: Scope) -> MutableMapping[str, Any]:
    state: MutableMapping[str, Any] = scope.setdefault("state", {})
    return state


class JsonFormatter(logging.Formatter):
    """One object per line: time, level, logger, message, and the record's ``fields``."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str)


class TextFormatter(logging.Formatter):
    """``12:00:01 info POST /v1/completions status=200 seconds=0.31``.

    Further lines, for example of a traceback, are indented, so that nothing that a client sends
    begins a line or moves a terminal's cursor.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")

    @override
    def format(self, record: logging.LogRecord) -> str:
        first, *others = (printable(line) for line in super().format(record).split("\n"))
        return "\n".join([first, *(f"    {line}" for line in others)])

    @override
    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {}).items()
        shown = [
            f"{name}={_field(value)}" for name, value in fields if name not in ("method", "path")
        ]
        return " ".join([super().formatMessage(record), *shown])


def printable(text: str) -> str:
    """Return ``text`` with escapes for control characters, line ends and the like.

    >>> printable("a\\nb")
    'a\\\\nb'
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def _field(value: object) -> str:
    """Quote a text with spaces, quotes or line ends, so that it can't look like two fields."""
    if not isinstance(value, str) or (value.isprintable() and not set(value) & set(' "')):
        return str(value)
    return json.dumps(value)


def log_to_stderr(form: Literal["text", "json"]) -> None:
    """Give the process' root logger one handler that writes lines of this form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.getLogger().handlers[:] = [handler]
    logging.getLogger(_SERVING).setLevel(logging.INFO)
