"""BufferPool: memory for KV caches that is reused from call to call."""

from __future__ import annotations

from dataclasses import dataclass

from ...engines.errors import CapacityError
from ...engines.memory import Buffer, Memory


@dataclass(frozen=True)
class KVMemory:
    """KV-cache memory of the last call, in bytes."""

    limit: int  # bytes that the generator may use
    planned: int  # maximum in use at once, as planned before the call
    peak: int  # maximum in use at once
    held: int  # kept for later calls; ``Generator.trim`` frees it


def size_class(size: int, least: int) -> int:
    """Round up to one of four sizes an octave, at most 25 % more; ``least``: a power of two.

    >>> [size_class(size, 16) for size in (3, 17, 33, 129, 1000)]
    [16, 20, 40, 160, 1024]
    """
    if size <= least:
        return least
    step = 1 << ((size - 1).bit_length() - 3)
    return -(-size // step) * step


def pooled_size(nbytes: int) -> int:
    """Round up to the pool's size classes.

    >>> pooled_size(4096), pooled_size(4097), pooled_size(9000)
    (4096, 5120, 10240)
    """
    return size_class(nbytes, 4096)


class BufferPool:
    """Keeps released buffers and hands them out again to requests of the same size class.

    ``limit`` bounds all bytes held; None is no bound. The pool never holds more than was in use at
    once since the last ``trim``: an allocation beyond that first frees the buffers that have been
    idle longest. With ``keeps_idle`` it frees them only at the limit. A buffer goes back to the
    ``user`` that had it last if possible, so that a repeated call finds the same addresses.
    """

    def __init__(
        self, memory: Memory, limit: int | None = None, *, keeps_idle: bool = False
    ) -> None:
        assert limit is not None or not keeps_idle
        self.memory = memory
        self.limit = limit
        self._keeps_idle = keeps_idle
        self._idle: list[tuple[Buffer, str]] = []
        self.in_use_bytes = 0
        self.peak_bytes = 0  # since ``reset_peak``
        self._most_bytes = 0  # in use at once, since ``trim``

    @property
    def idle_bytes(self) -> int:
        """Bytes held for later calls."""
        return sum(buffer.nbytes for buffer, _ in self._idle)

    def acquire(self, nbytes: int, user: str = "") -> Buffer:
        """Return a flat buffer of ``pooled_size(nbytes)`` bytes, contents undefined.

        Raises CapacityError if the limit would be passed even with no idle buffer left, or there
        is no such memory; the account then stays as it was.
        """
        size = pooled_size(nbytes)
        if self.limit is not None and self.in_use_bytes + size > self.limit:
            raise CapacityError(
                "KV memory",
                f"{size:,} bytes more than the {self.in_use_bytes:,} in use pass the limit of "
                f"{self.limit:,}; raise kv_memory or lower max_batch_size",
            )
        buffer = self._take_idle(size, user)
        if buffer is None:
            self._drop_idle(self._idle_allowed() - size)
            buffer = self.memory.allocate(size)
        self.in_use_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.in_use_bytes)
        self._most_bytes = max(self._most_bytes, self.in_use_bytes)
        return buffer

    def release(self, buffer: Buffer, user: str = "") -> None:
        """Take back a buffer; the caller must hold no binding to it any more."""
        self.in_use_bytes -= buffer.nbytes
        self._idle.append((buffer, user))
        self._drop_idle(self._idle_allowed())

    def reset_peak(self) -> None:
        """Restart the measurement of ``peak_bytes``."""
        self.peak_bytes = self.in_use_bytes

    def trim(self) -> None:
        """Free all idle buffers."""
        self._idle.clear()
        self._most_bytes = self.in_use_bytes

    def _idle_allowed(self) -> int:
        """Return how many bytes may be idle beside those in use."""
        most = self.limit if self._keeps_idle and self.limit is not None else self._most_bytes
        return most - self.in_use_bytes

    def _drop_idle(self, allowed: int) -> None:
        """Free the longest-idle buffers until at most ``allowed`` bytes are idle."""
        idle = self.idle_bytes
        while self._idle and idle > allowed:
            idle -= self._idle.pop(0)[0].nbytes

    def _take_idle(self, size: int, user: str) -> Buffer | None:
        """Return an idle buffer of ``size`` bytes, preferably the one that ``user`` had.

        Returns None if there is none, or only others' and there is room to keep them idle.
        """
        places = [i for i, (buffer, _) in enumerate(self._idle) if buffer.nbytes == size]
        own = [place for place in places if self._idle[place][1] == user]
        has_room = self._keeps_idle and self.idle_bytes + size <= self._idle_allowed()
        if not own and (has_room or not places):
            return None
        return self._idle.pop((own or places)[0])[0]
