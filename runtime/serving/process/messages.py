"""Messages between a server's process and its workers: one validated JSON document per line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any, Self, get_args

from pydantic import ConfigDict, TypeAdapter

from ....engines import errors
from ....engines.errors import SkipDecError
from ...requests.request import Request, ScoreRequest
from ...schedule import ExitSchedule
from ...schedule.text import format_schedule, parse_schedule
from ...scheduling.loaded_bundle import RequestLimits
from ...scheduling.stats import EngineStats
from ...tokens.outputs import Logprob, RequestOutput, ScoreOutput, StreamDelta
from ..engine_loop import Cancellation
from ..open_request import ServedRequest


@lru_cache(maxsize=128)
def _parsed_schedule(text: str, num_layers: int) -> ExitSchedule:
    return parse_schedule(text, num_layers=num_layers)


@dataclass(frozen=True)
class Submission:
    """Wire form of a request to generate or to score; the prompt's text stays behind."""

    request_id: str
    request: Request | ScoreRequest
    schedule: str  # its text in full
    deadline: float | None  # of time.monotonic

    @classmethod
    def of(cls, asked: ServedRequest) -> Self:
        """Encode ``asked``; `asked` decodes it."""
        request = asked.request
        if isinstance(request, Request):
            request = replace(request, prompt=None)
        return cls(asked.request_id, request, format_schedule(asked.schedule), asked.deadline)

    def asked(self, num_layers: int) -> ServedRequest:
        """Decode the request. Raises ScheduleError for a rule that this process does not know."""
        schedule = _parsed_schedule(self.schedule, num_layers)
        return ServedRequest(self.request_id, self.request, schedule, self.deadline)

    def content(self) -> str:
        """Return a hash of prompt, parameters and schedule, equal for equal requests."""
        request = replace(self.request, client="")
        asked = replace(self, request_id="", deadline=None, request=request)
        return sha256(encode(asked)).hexdigest()


@dataclass(frozen=True)
class Loaded:
    """The worker takes requests."""

    digest: str  # of the manifest of the bundle that it opened
    stats: EngineStats
    limits: RequestLimits


@dataclass(frozen=True)
class Refused:
    """An error of one request or, without a request_id, of opening the bundle."""

    kind: str  # the class's name
    subject: str
    problems: tuple[str, ...]
    request_id: str | None = None

    @classmethod
    def of(cls, error: Exception, request_id: str | None = None) -> Self:
        """Encode ``error``; `error` decodes it."""
        if isinstance(error, SkipDecError):
            return cls(type(error).__name__, error.subject, error.problems, request_id)
        return cls(type(error).__name__, "", (str(error),), request_id)

    def error(self) -> Exception:
        """An error of the same class, or of SkipDecError if it is none of ours."""
        if self.kind == TimeoutError.__name__:
            return TimeoutError(*self.problems)
        kind = getattr(errors, self.kind, SkipDecError)
        assert issubclass(kind, SkipDecError), self.kind
        return kind(self.subject, *self.problems)


@dataclass(frozen=True)
class Begun:
    """These requests no longer wait, so a crash from here on is blamed on them."""

    request_ids: tuple[str, ...]


@dataclass(frozen=True)
class Stepped:
    """The result of a step, with the engine's figures if they are due.

    Results are without the log-probabilities that came before them (see `parts`).
    """

    __pydantic_config__ = ConfigDict(ser_json_inf_nan="constants")  # of log-probabilities

    deltas: tuple[tuple[str, StreamDelta], ...]
    ended: tuple[RequestOutput, ...]
    scored: tuple[tuple[str, ScoreOutput], ...]
    stats: EngineStats | None = None


@dataclass(frozen=True)
class ScorePart:
    """Alternatives of some tokens of a text that is scored; its result comes after all of them."""

    __pydantic_config__ = ConfigDict(ser_json_inf_nan="constants")

    request_id: str
    top_logprobs: tuple[dict[int, Logprob], ...]


@dataclass(frozen=True)
class Logged:
    """A line of the worker's log."""

    level: int
    logger: str
    text: str


Message = Submission | Cancellation | Loaded | Refused | Begun | ScorePart | Stepped | Logged
_ADAPTERS: Mapping[bytes, TypeAdapter[Any]] = {
    kind.__name__.encode(): TypeAdapter(kind) for kind in get_args(Message)
}


def encode(message: Message) -> bytes:
    """A line: the kind's name, a space, the document. JSON has no line ends but escaped ones."""
    kind = type(message).__name__.encode()
    return kind + b" " + _ADAPTERS[kind].dump_json(message) + b"\n"


def decode(line: bytes) -> Message:
    """Read what `encode` made. Raises ValueError for anything else."""
    kind, _, document = line.partition(b" ")
    if kind not in _ADAPTERS:
        raise ValueError(f"{kind[:40]!r} is no kind of message")
    message: Message = _ADAPTERS[kind].validate_json(document)
    return message
