"""Messages between a server's process and its workers, and the link that carries them."""

from __future__ import annotations

import select
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from itertools import chain
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Self, get_args

from pydantic import ConfigDict, TypeAdapter

from ....engines import errors
from ....engines.errors import SkipDecError
from ...kv.plans import SlotMemory
from ...requests.request import Request
from ...requests.score_request import ScoreRequest
from ...schedule import ExitSchedule
from ...schedule.text import format_schedule, parse_schedule
from ...scheduling.stats import EngineStats
from ...tokens.outputs import Logprob, RequestOutput, ScoreOutput, StreamDelta
from ..engine_loop import Cancellation, StepResult
from ..stream import ServedRequest

_CHUNK = 1 << 16  # bytes read at once
# Of one message. Reading one is a call that holds the interpreter's lock, and the server's event
# loop with it: 4.5 µs for each log-probability, so 200 ms for 2,048 tokens and 20 alternatives.
_MOST_LOGPROBS = 512


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
    memory: SlotMemory


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

    Results are without the log-probabilities that came before them (see `LogprobParts`).
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


Entries = tuple[dict[int, Logprob], ...]


def step_messages(result: StepResult, stats: EngineStats | None) -> Iterator[ScorePart | Stepped]:
    """Make the messages for a step and its figures; texts whose scoring failed are left out."""
    deltas: list[tuple[str, StreamDelta]] = []
    count = 0
    for request_id, delta in result.deltas:
        deltas.append((request_id, delta))
        count += sum(map(len, delta.logprobs or ()))
        if count > _MOST_LOGPROBS:
            yield Stepped(tuple(deltas), (), ())
            deltas, count = [], 0
    scored = []
    for one in result.scored:
        if one.output is not None:
            entries = one.output.top_logprobs or ()
            tokens = max(1, _MOST_LOGPROBS // max(map(len, entries), default=1))
            for start in range(0, len(entries), tokens):
                yield ScorePart(one.request_id, entries[start : start + tokens])
            bare = one.output if not entries else replace(one.output, top_logprobs=())
            scored.append((one.request_id, bare))
    ended = tuple(_with_logprobs(one, lambda _: ()) for one in result.ended)
    if deltas or stats is not None:
        yield Stepped(tuple(deltas), ended, tuple(scored), stats)


class LogprobParts:
    """Puts the log-probabilities of results together again, from what came before them."""

    def __init__(self) -> None:
        self._parts: dict[str, dict[int, list[Entries]]] = {}  # by request and completion

    def take(self, message: ScorePart | Stepped) -> None:
        """Keep what a message has of results to come."""
        if isinstance(message, ScorePart):
            self._add(message.request_id, 0, message.top_logprobs)
            return
        for request_id, delta in message.deltas:
            if delta.logprobs:
                self._add(request_id, delta.index, delta.logprobs)

    def completed(self, output: RequestOutput) -> RequestOutput:
        """Return the result of a request with its log-probabilities, and forget these."""
        parts = self._parts.pop(output.request_id, {})
        return _with_logprobs(output, lambda index: _joined(parts, index))

    def scored(self, request_id: str, output: ScoreOutput) -> ScoreOutput:
        """Return the result of a scored text with its alternatives, and forget these."""
        parts = self._parts.pop(request_id, {})
        if output.top_logprobs is None:
            return output
        return replace(output, top_logprobs=_joined(parts, 0))

    def clear(self) -> None:
        """Forget all: the worker has died."""
        self._parts.clear()

    def _add(self, request_id: str, index: int, entries: Entries) -> None:
        self._parts.setdefault(request_id, defaultdict(list))[index].append(entries)


def _with_logprobs(output: RequestOutput, entries: Callable[[int], Entries]) -> RequestOutput:
    """Replace the log-probabilities of completions that have some by those of their index."""
    outputs = tuple(
        one if one.logprobs is None else replace(one, logprobs=entries(one.index))
        for one in output.outputs
    )
    return replace(output, outputs=outputs)


def _joined(parts: Mapping[int, list[Entries]], index: int) -> Entries:
    return tuple(chain.from_iterable(parts.get(index, ())))


class Link:
    """One end of a socket between two processes; `send` from any thread, `receive` in one."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._lock = Lock()
        self._received = bytearray()
        self._searched = 0  # bytes of these that hold no line's end
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def send(self, message: Message) -> None:
        """Hand a message to the system, waiting while the other side doesn't read.

        Nothing happens where the other side has ended: `receive` tells.
        """
        line = encode(message)
        with self._lock, suppress(OSError):
            self._socket.sendall(line)

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message; None if none has come whole after ``timeout`` seconds.

        Raises EOFError if the other side has ended, even in the middle of a message, and
        ValueError for an invalid message.
        """
        while (end := self._received.find(b"\n", self._searched)) < 0:
            self._searched = len(self._received)
            if timeout is not None and not self._poll.poll(timeout * 1000):
                return None
            try:
                data = self._socket.recv(_CHUNK)
            except OSError:
                data = b""
            if not data:
                raise EOFError
            self._received += data
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        self._searched = 0
        return decode(line)

    def close(self) -> None:
        """Tell the other side that this is the end."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class Outbox:
    """Sends in a thread of its own, so that nobody waits for a process that does not read."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._queue: SimpleQueue[Message | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="skipdec outbox", daemon=True)
        self._thread.start()

    def send(self, message: Message) -> None:
        """Send it after what was sent before."""
        self._queue.put(message)

    def close(self) -> None:
        """Send no more. For after the other side has ended: what it had not read is lost."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (message := self._queue.get()) is not None:
            self._link.send(message)
