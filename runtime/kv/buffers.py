"""The layout of KV caches, the pool of their memory, and pairs of key and value buffers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from ...engines.errors import BundleError, CapacityError
from ...engines.manifest import DType, TensorSpec
from ...engines.memory import ITEM_BYTES, Buffer, Memory, Tensor


@dataclass(frozen=True)
class KVLayout:
    """Shape of one position of one layer's key (or value) cache, from its engine's spec."""

    num_heads: int
    width: int  # W, elements of a head: D, plus 4 bytes of scale if they are int8
    dtype: DType

    @classmethod
    def of(cls, past_key: TensorSpec) -> KVLayout:
        """Read ``[B, num_heads, T, width]`` from a past_key; BundleError for another shape."""
        match past_key.shape:
            case (_, int(num_heads), _, int(width)):
                return cls(num_heads, width, past_key.dtype)
        raise BundleError(
            f"tensor {past_key.name}", f"is {past_key.shape}; expected (B, num_heads, T, width)"
        )

    def nbytes(self, rows: int, capacity: int) -> int:
        """Return the bytes of one key or value buffer [rows, num_heads, capacity, width].

        32 heads of 64 at 1,024 positions: 8 MiB in float32, 4 in float16, 2.125 in int8.
        """
        return rows * self.num_heads * capacity * self.width * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class KVMemory:
    """KV-cache memory of the last call, in bytes."""

    limit: int  # bytes that the generator may use
    planned: int  # maximum in use at once, as planned before the call
    peak: int  # maximum in use at once
    held: int  # kept for later calls; ``Generator.trim`` frees it


def size_class(size: int, least: int) -> int:
    """Round up to one of four sizes per octave, at most 25 % more; ``least`` is a power of two.

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

    ``limit`` bounds all bytes held. The pool never holds more than was in use at once since the
    last ``trim``, or ``least_idle``: an allocation beyond that first frees the buffers that have
    been idle longest. With ``keeps_idle`` it frees them only at the limit. If possible, a buffer
    goes back to the ``user`` that had it last, so that a repeated call gets the same addresses.
    ``on_free`` is called with each buffer before it is freed.
    """

    def __init__(
        self,
        memory: Memory,
        limit: int,
        *,
        keeps_idle: bool = False,
        least_idle: int = 0,
    ) -> None:
        self.memory = memory
        self.limit = limit
        self._keeps_idle = keeps_idle
        self._least_idle = least_idle
        self.on_free: Callable[[Buffer], None] = lambda buffer: None
        self._idle: list[tuple[Buffer, str]] = []
        self.idle_bytes = 0  # held for later calls
        self.in_use_bytes = 0
        self.peak_bytes = 0  # since ``reset_peak``
        self._most_bytes = 0  # maximum in use at once since ``trim``

    def acquire(self, nbytes: int, user: str = "") -> Buffer:
        """Return a flat buffer of ``pooled_size(nbytes)`` bytes, contents undefined.

        Raises CapacityError, with the counts unchanged, if the limit would be exceeded even without
        idle buffers, or the memory can't be allocated.
        """
        size = pooled_size(nbytes)
        if self.in_use_bytes + size > self.limit:
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
        self.idle_bytes += buffer.nbytes
        self._drop_idle(self._idle_allowed())

    def reset_peak(self) -> None:
        """Restart the measurement of ``peak_bytes``."""
        self.peak_bytes = self.in_use_bytes

    def end_call(self) -> None:
        """Count nothing as in use, as an interrupted call may not have released its buffers."""
        self.in_use_bytes = 0

    def trim(self) -> None:
        """Free all idle buffers."""
        while self._idle:
            self._free_oldest()
        self._most_bytes = self.in_use_bytes

    def _idle_allowed(self) -> int:
        """Return how many bytes may be idle in addition to those in use."""
        most = self.limit if self._keeps_idle else max(self._most_bytes, self._least_idle)
        return min(most, self.limit) - self.in_use_bytes

    def _drop_idle(self, allowed: int) -> None:
        """Free the longest-idle buffers until at most ``allowed`` bytes are idle."""
        while self._idle and self.idle_bytes > allowed:
            self._free_oldest()

    def _free_oldest(self) -> None:
        """Free the buffer that has been idle longest."""
        buffer, _ = self._idle.pop(0)
        self.idle_bytes -= buffer.nbytes
        self.on_free(buffer)

    def _take_idle(self, size: int, user: str) -> Buffer | None:
        """Return an idle buffer of ``size`` bytes, preferably the one that ``user`` had.

        Returns None if there is none, or if only other users had them and they may stay idle.
        """
        others: int | None = None
        for index, (buffer, owner) in enumerate(self._idle):
            if buffer.nbytes == size and owner == user:
                return self._taken(index)
            if buffer.nbytes == size and others is None:
                others = index
        keeps_idle = self._keeps_idle or self._least_idle > 0
        has_room = keeps_idle and self.idle_bytes + size <= self._idle_allowed()
        return None if others is None or has_room else self._taken(others)

    def _taken(self, index: int) -> Buffer:
        buffer, _ = self._idle.pop(index)
        self.idle_bytes -= buffer.nbytes
        return buffer


def pair_bytes(layout: KVLayout, size: tuple[int, int]) -> int:
    """Return the bytes that a key and a value buffer of ``size`` rows and positions take."""
    return 2 * pooled_size(layout.nbytes(*size)) if all(size) else 0


@dataclass
class CachePair:
    """Key and value [rows, N, T, W]; the pool knows their memory by ``user``.

    ``size`` has the requested rows and positions; T may be larger.
    """

    user: str
    key_memory: Buffer
    value_memory: Buffer
    key: Tensor
    value: Tensor
    size: tuple[int, int]

    @classmethod
    def acquire(
        cls,
        pool: BufferPool,
        layout: KVLayout,
        rows: int,
        capacity: int,
        user: str,
        *,
        fills: bool = False,
    ) -> Self:
        """Take both from ``pool``, contents undefined; CapacityError, taking neither, if it can't.

        With ``fills``, T is as large as the buffers allow, so that calls of similar lengths have
        the same shapes.
        """
        nbytes = layout.nbytes(rows, capacity)
        with ExitStack() as on_failure:
            key_memory = pool.acquire(nbytes, f"{user} key")
            on_failure.callback(pool.release, key_memory, f"{user} key")
            value_memory = pool.acquire(nbytes, f"{user} value")
            on_failure.pop_all()
        held = key_memory.nbytes // layout.nbytes(rows, 1) if fills else capacity
        shape = (rows, layout.num_heads, held, layout.width)
        key, value = (
            pool.memory.tensor(memory, shape, layout.dtype) for memory in (key_memory, value_memory)
        )
        return cls(user, key_memory, value_memory, key, value, (rows, capacity))

    def release(self, pool: BufferPool) -> None:
        """Give both back to the pool; nothing may be bound to them any more."""
        pool.release(self.key_memory, f"{self.user} key")
        pool.release(self.value_memory, f"{self.user} value")

    def copy_row(self, pool: BufferPool, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of a row over another."""
        for tensor in (self.key, self.value):
            pool.memory.copy_between((tensor, target), (tensor, source), length)
