"""Messages between an engine's queue and the loop that steps it, in this or another process."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from numbers import Real
from time import monotonic
from uuid import uuid4

from pydantic import ConfigDict, TypeAdapter

from ...engines.documents import lone_surrogate
from ...engines.errors import ClosedError, UsageError, shown
from ...engines.host.sent_error import SentError
from ..requests.request import Request
from ..requests.score_request import ScoreRequest
from ..schedule import ExitSchedule
from ..schedule.text import format_schedule, parse_schedule
from ..scheduling.stats import EngineStats
from ..tokens.outputs import Logprob, RequestOutput, ScoreOutput, StreamDelta

Entries = tuple[dict[int, Logprob], ...]  # one per token


@lru_cache(maxsize=256)
def _parsed(schedule: str, num_layers: int) -> ExitSchedule:
    return parse_schedule(schedule, num_layers=num_layers)


def require_time(subject: str, seconds: float | None) -> None:
    """Raise UsageError for anything but a number of a float's range, and for NaN."""
    try:
        is_time = seconds is None or (isinstance(seconds, Real) and not math.isnan(seconds))
    except OverflowError:  # an integer
        is_time = False
    if not is_time:
        raise UsageError(
            subject, f"is {shown(seconds)}; allowed: seconds from now, or None for no end"
        )


def _require_name(subject: str, name: str) -> None:
    """Raise UsageError for a name that messages can't contain."""
    problem = lone_surrogate(name) if isinstance(name, str) else f"is {shown(name)}"
    if problem:
        raise UsageError(subject, f"{problem}; allowed: a text")


@dataclass(frozen=True)
class ServedRequest:
    """A checked request, to generate or to score, with the id that clients know."""

    request_id: str
    request: Request | ScoreRequest
    schedule: str  # its text in full
    deadline: float | None = None  # by time.monotonic, which all processes of a machine share

    @classmethod
    def of(
        cls,
        request: Request | ScoreRequest,
        schedule: ExitSchedule,
        request_id: str | None = None,
        seconds: float | None = None,
    ) -> ServedRequest:
        """Give a request its id, by default a new one, and a deadline ``seconds`` from now.

        Raises UsageError for an id that is not a text, and for seconds that are not a number.
        """
        _require_name("client", request.client)
        if request_id is not None:
            _require_name("request_id", request_id)
        require_time("deadline", seconds)
        deadline = None if seconds is None else monotonic() + seconds
        return cls(request_id or uuid4().hex, request, format_schedule(schedule), deadline)

    def exit_schedule(self, num_layers: int) -> ExitSchedule:
        """Return the schedule. Raises ScheduleError for a rule unknown to this process."""
        return _parsed(self.schedule, num_layers)

    def without_text(self) -> ServedRequest:
        """Return the request without its prompt's text, which an engine does not need."""
        if not isinstance(self.request, Request) or self.request.prompt is None:
            return self
        return replace(self, request=replace(self.request, prompt=None))

    def content(self) -> str:
        """Return a hash of prompt, parameters and schedule, equal for equal requests."""
        bare = self.without_text()
        bare = replace(bare, request_id="", deadline=None, request=replace(bare.request, client=""))
        return sha256(_SERVED.dump_json(bare)).hexdigest()

    def is_late(self, now: float) -> bool:
        """Return True if the deadline has passed at ``now``."""
        return self.deadline is not None and now > self.deadline


_SERVED = TypeAdapter(ServedRequest)


@dataclass(frozen=True)
class Cancellation:
    """Tells the engine to end a request with this stop_reason."""

    request_id: str
    reason: str


@dataclass(frozen=True)
class Begun:
    """These requests no longer wait, so a crash from here on is blamed on them."""

    request_ids: tuple[str, ...]


@dataclass(frozen=True)
class Refused:
    """An error of one request or, without a request_id, of opening the bundle."""

    sent: SentError
    request_id: str | None = None

    @classmethod
    def of(cls, error: Exception, request_id: str | None = None) -> Refused:
        """Encode an error of skipdec or the system."""
        return cls(SentError.of(error), request_id)


@dataclass(frozen=True)
class StepResult:
    """The result of a step: deltas by request_id, and the results of the requests that it ended.

    ``scored`` has the text scored since the last step. From another process, its alternatives
    arrive earlier, in ``parts``, and the log-probabilities of ``ended`` only in the deltas; the
    engine's figures arrive when they are due.
    """

    __pydantic_config__ = ConfigDict(ser_json_inf_nan="constants")  # of log-probabilities

    deltas: list[tuple[str, StreamDelta]] = field(default_factory=list)
    ended: list[RequestOutput] = field(default_factory=list)
    scored: list[tuple[str, ScoreOutput]] = field(default_factory=list)
    parts: list[tuple[str, Entries]] = field(default_factory=list)
    stats: EngineStats | None = None


ToEngine = ServedRequest | Cancellation
FromEngine = Begun | Refused | StepResult


def given_up(reason: str) -> Exception:
    """Return the error of a text that was not scored; ``reason`` may be "deadline"."""
    if reason == "deadline":
        return TimeoutError("the deadline was over before the text was scored")
    return ClosedError("AsyncEngine", "the text was given up before it was scored")
