"""CachePair: the key and value buffers of one layer, in memory of a pool."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from ...engines.memory import Buffer, Tensor
from .layout import KVLayout
from .pool import BufferPool, pooled_size


def pair_bytes(layout: KVLayout, size: tuple[int, int]) -> int:
    """Return the bytes that a key and a value buffer of ``size`` rows and positions take."""
    return 2 * pooled_size(layout.nbytes(*size)) if all(size) else 0


@dataclass
class CachePair:
    """Key and value [rows, N, T, W]; the pool knows their memory by ``user``."""

    user: str
    key_memory: Buffer
    value_memory: Buffer
    key: Tensor
    value: Tensor

    @classmethod
    def acquire(
        cls, pool: BufferPool, layout: KVLayout, rows: int, capacity: int, user: str
    ) -> Self:
        """Take both from ``pool``, contents undefined. Raises CapacityError and takes neither."""
        nbytes = layout.nbytes(rows, capacity)
        with ExitStack() as on_failure:
            key_memory = pool.acquire(nbytes, f"{user} key")
            on_failure.callback(pool.release, key_memory, f"{user} key")
            value_memory = pool.acquire(nbytes, f"{user} value")
            on_failure.pop_all()
        shape = (rows, layout.num_heads, capacity, layout.width)
        key, value = (
            pool.memory.tensor(memory, shape, layout.dtype) for memory in (key_memory, value_memory)
        )
        return cls(user, key_memory, value_memory, key, value)

    @property
    def size(self) -> tuple[int, int]:
        """Rows and positions."""
        return self.key.shape[0], self.key.shape[2]

    def release(self, pool: BufferPool) -> None:
        """Give both back to the pool; nothing may be bound to them any more."""
        pool.release(self.key_memory, f"{self.user} key")
        pool.release(self.value_memory, f"{self.user} value")

    def copy_row(self, pool: BufferPool, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of a row over another."""
        for tensor in (self.key, self.value):
            pool.memory.copy_positions(tensor, source, target, length)
