"""Link: messages to another process and from it, over a socket that both hold one end of."""

from __future__ import annotations

import select
import socket
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread

from .messages import Message, decode, encode

_CHUNK = 1 << 16  # bytes read at once


class Link:
    """One end; `send` from any thread, `receive` in one."""

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
