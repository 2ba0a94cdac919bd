"""The link between a server's process and its worker, with the messages that only it carries."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, get_args

from pydantic import TypeAdapter

from ...kv.plans import SlotMemory
from ...scheduling.stats import EngineStats
from ..messages import Begun, Cancellation, Refused, ServedRequest, StepResult

_CHUNK = 1 << 16  # bytes read at once
# Of one message. Parsing a message holds the GIL, and so the server's event loop: 4.5 µs for each
# log-probability, so 200 ms for 2,048 tokens with 20 alternatives.
_MOST_LOGPROBS = 512


@dataclass(frozen=True)
class Loaded:
    """The worker accepts requests."""

    digest: str  # of the manifest of the bundle that it opened
    stats: EngineStats
    memory: SlotMemory


@dataclass(frozen=True)
class Logged:
    """A line of the worker's log."""

    level: int
    logger: str
    text: str


Message = ServedRequest | Cancellation | Loaded | Refused | Begun | StepResult | Logged
_ADAPTERS: Mapping[bytes, TypeAdapter[Any]] = {
    kind.__name__.encode(): TypeAdapter(kind) for kind in get_args(Message)
}


def encode(message: Message) -> bytes:
    """Return a line: the kind's name, a space, and JSON, in which all line ends are escaped."""
    kind = type(message).__name__.encode()
    return kind + b" " + _ADAPTERS[kind].dump_json(message) + b"\n"


def decode(line: bytes) -> Message:
    """Parse a line of `encode`. Raises ValueError for anything else."""
    kind, _, document = line.partition(b" ")
    if kind not in _ADAPTERS:
        raise ValueError(f"{kind[:40]!r} is no kind of message")
    message: Message = _ADAPTERS[kind].validate_json(document)
    return message


def in_parts(result: StepResult) -> Iterator[StepResult]:
    """Divide a result into parts with few log-probabilities each, none of them repeated."""
    deltas = []
    count = 0
    for request_id, delta in result.deltas:
        deltas.append((request_id, delta))
        count += sum(map(len, delta.logprobs or ()))
        if count > _MOST_LOGPROBS:
            yield StepResult(deltas)
            deltas, count = [], 0
    scored = []
    for request_id, scores in result.scored:
        entries = scores.top_logprobs or ()
        tokens = max(1, _MOST_LOGPROBS // max(map(len, entries), default=1))
        for start in range(0, len(entries), tokens):
            yield StepResult(parts=[(request_id, entries[start : start + tokens])])
        scored.append((request_id, replace(scores, top_logprobs=()) if entries else scores))
    ended = [
        replace(
            output,
            outputs=tuple(replace(one, logprobs=one.logprobs and ()) for one in output.outputs),
        )
        for output in result.ended
    ]
    yield StepResult(deltas, ended, scored, stats=result.stats)


class Link:
    """One end of a socket between two processes; call `send` from any thread, `receive` in one."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._lock = Lock()
        self._received = bytearray()
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def send(self, message: Message) -> None:
        """Write a message to the socket, waiting while the other side doesn't read.

        If the other side has ended, nothing is written; `receive` then raises EOFError.
        """
        line = encode(message)
        with self._lock, suppress(OSError):
            self._socket.sendall(line)

    def receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message; None if it is not complete after ``timeout`` seconds.

        Raises EOFError if the other side has ended, even in the middle of a message, and
        ValueError for an invalid message.
        """
        while (end := self._received.find(b"\n")) < 0:
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
        return decode(line)

    def close(self) -> None:
        """Close the socket, once the other side has ended."""
        self._socket.close()


class Outbox:
    """Sends in a thread of its own, so that nobody waits for a process that does not read."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._queue: SimpleQueue[Message | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="skipdec outbox", daemon=True)
        self._thread.start()

    def send(self, message: Message) -> None:
        """Send ``message`` after all earlier ones; a request is sent without its text."""
        if isinstance(message, ServedRequest):
            message = message.without_text()
        self._queue.put(message)

    def close(self) -> None:
        """Stop sending; only after the other side has ended. What it has not read is lost."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (message := self._queue.get()) is not None:
            self._link.send(message)
