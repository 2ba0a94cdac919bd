"""RequestRecord: the facts about an HTTP request that its log line and the metrics show."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from time import perf_counter, time_ns
from typing import Any

from starlette.types import Scope

from ...stream import RequestTimes

_MOST_PATH = 500  # characters that are kept


@dataclass
class RequestRecord:
    """Facts about a request, never its prompt or text. Each part of the server adds its own."""

    request_id: str
    method: str
    path: str
    start: float  # perf_counter seconds
    start_ns: int  # nanoseconds since 1970
    client: str = ""  # its address, or a name of its API key; takes turns with others
    status: int | None = None  # None: nothing was answered
    gone: bool = False  # the client went before the end
    model: str | None = None
    schedule: str | None = None  # as asked for
    prompts: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    realised_depth: float | None = None
    finish_reasons: tuple[str, ...] = ()
    error: str | None = None  # its code or kind
    texts: list[RequestTimes] = field(default_factory=list)  # one a prompt that was queued

    @classmethod
    def begin(cls, scope: Scope, request_id: str) -> RequestRecord:
        """The record of a request that comes now; `of` finds it."""
        path = scope["path"][:_MOST_PATH]
        record = cls(request_id, scope["method"], path, perf_counter(), time_ns())
        record.client = (scope.get("client") or ("",))[0]
        _state(scope)["record"] = record
        return record

    @classmethod
    def of(cls, scope: Scope) -> RequestRecord:
        """The record of the request with this scope."""
        record: RequestRecord = _state(scope)["record"]
        return record

    def use(self, usage: dict[str, Any]) -> None:
        """Take over what an answer says it used."""
        self.prompt_tokens = usage["prompt_tokens"]
        self.completion_tokens = usage["completion_tokens"]
        self.realised_depth = usage["realised_depth"]

    def fields(self) -> dict[str, Any]:
        """Return the known fields for a log line."""
        known = vars(self) | {"seconds": round(perf_counter() - self.start, 4)}
        for name in ("start", "start_ns", "client", "texts"):
            del known[name]
        if self.realised_depth is not None:
            known["realised_depth"] = round(self.realised_depth, 3)
        return {name: value for name, value in known.items() if value not in (None, (), False)}


def _state(scope: Scope) -> MutableMapping[str, Any]:
    state: MutableMapping[str, Any] = scope.setdefault("state", {})
    return state
