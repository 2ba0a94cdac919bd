"""Key/value caches of a batch: planned before work, taken from a pool, retired layer by layer.

Worked example (L=6, warm-up 1, budgets 6 4 3 3 2 2 ..., prompt of 10 tokens, max_tokens 8):
layers 1 and 2 run only in the prompt and share one scratch pair of capacity 10; layer 3 last runs
at generated index 0 and holds 10 + 1 positions; layer 4 last runs at index 2 and holds 10 + 3;
layers 0 and 5 always run and hold 10 + 7, since the last token is never fed back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..engines.errors import CapacityError
from ..engines.manifest import TensorSpec
from ..engines.session import Array
from .schedule import ExitSchedule


def pooled_size(nbytes: int) -> int:
    """Round up to the pool's size classes, four an octave: at most 25 % more.

    >>> pooled_size(4096), pooled_size(4097), pooled_size(9000)
    (4096, 5120, 10240)
    """
    if nbytes <= 4096:
        return 4096
    step = 1 << ((nbytes - 1).bit_length() - 3)
    return -(-nbytes // step) * step


class BufferPool:
    """Memory that outlives a call: released buffers serve later requests of the same size class.

    ``allocate`` makes a flat uint8 array of n bytes. ``limit`` bounds all bytes held, in bytes;
    None is no bound. An allocation first frees what is idle beyond
    the most that was in use at once.
    """

    def __init__(
        self, allocate: Callable[[int], NDArray[np.uint8]], limit: int | None = None
    ) -> None:
        self._allocate = allocate
        self.limit = limit
        self._idle: list[NDArray[np.uint8]] = []
        self.in_use_bytes = 0
        self.peak_bytes = 0

    @property
    def idle_bytes(self) -> int:
        """Bytes held for later calls."""
        return sum(buffer.nbytes for buffer in self._idle)

    def acquire(self, nbytes: int) -> NDArray[np.uint8]:
        """Return a flat buffer of ``pooled_size(nbytes)`` bytes, contents undefined.

        Raises CapacityError if the limit would be passed even with no idle buffer left.
        """
        size = pooled_size(nbytes)
        if self.limit is not None and self.in_use_bytes + size > self.limit:
            raise CapacityError(
                "KV memory",
                f"{size:,} bytes more than the {self.in_use_bytes:,} in use pass the limit of "
                f"{self.limit:,}; raise kv_memory or lower max_batch_size",
            )
        for index, buffer in enumerate(self._idle):
            if buffer.nbytes == size:
                del self._idle[index]
                break
        else:
            self._drop_idle(self.peak_bytes - self.in_use_bytes - size)
            buffer = self._allocate(size)
        self.in_use_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.in_use_bytes)
        return buffer

    def release(self, buffer: NDArray[np.uint8]) -> None:
        """Take back a buffer of ``acquire``; the caller must hold no binding to it any more."""
        self.in_use_bytes -= buffer.nbytes
        self._idle.append(buffer)
        self._drop_idle(self.peak_bytes - self.in_use_bytes)

    def reset_peak(self) -> None:
        """Measure ``peak_bytes`` anew from here on."""
        self.peak_bytes = self.in_use_bytes

    def trim(self) -> None:
        """Free all idle buffers."""
        self._idle.clear()

    def _drop_idle(self, allowed: int) -> None:
        """Free the longest-idle buffers until at most ``allowed`` bytes are idle."""
        idle = self.idle_bytes
        while self._idle and idle > allowed:
            idle -= self._idle.pop(0).nbytes


@dataclass(frozen=True)
class KVLayout:
    """Shape of one position of one layer's key (or value) cache, from its engine's spec."""

    num_heads: int
    head_dim: int
    dtype: np.dtype[np.generic]

    @classmethod
    def of(cls, past_key: TensorSpec) -> KVLayout:
        """Read ``[B, num_heads, T, head_dim]`` from an engine's past_key."""
        _, num_heads, _, head_dim = past_key.shape
        return cls(int(num_heads), int(head_dim), np.dtype(past_key.dtype))

    def nbytes(self, rows: int, capacity: int) -> int:
        """Bytes of one key or value buffer [rows, num_heads, capacity, head_dim]."""
        return rows * self.num_heads * capacity * self.head_dim * self.dtype.itemsize


@dataclass(frozen=True)
class KVPlan:
    """Capacities of one batch's caches, in positions.

    ``capacities[l]`` is 0 for a layer that runs in the prompt only; such layers are served by one
    scratch pair of ``scratch_rows`` x ``scratch_capacity``.
    """

    layout: KVLayout
    rows: int
    capacities: tuple[int, ...]
    scratch_rows: int = 0
    scratch_capacity: int = 0

    @property
    def nbytes(self) -> int:
        """Most bytes that the batch takes from the pool at once."""
        sizes = [(self.rows, capacity) for capacity in self.capacities if capacity]
        if self.scratch_capacity:
            sizes.append((self.scratch_rows, self.scratch_capacity))
        return 2 * sum(pooled_size(self.layout.nbytes(*size)) for size in sizes)


def plan_kv_cache(
    layout: KVLayout,
    schedule: ExitSchedule,
    prompt_lengths: Sequence[int],
    max_tokens: Sequence[int],
    *,
    scratch_rows: int,
) -> KVPlan:
    """Plan the caches of a batch whose row r holds prompt_lengths[r] + up to max_tokens[r] tokens.

    ``scratch_rows``: the most rows of one prefill call.
    """
    capacities = []
    for layer in range(schedule.num_layers):
        last = schedule.last_index(layer)
        fed = [max(0, tokens - 1) for tokens in max_tokens]  # the last token is never fed back
        if last is not None:
            fed = [min(steps, last + 1) for steps in fed]
        needed = max(length + steps for length, steps in zip(prompt_lengths, fed, strict=True))
        capacities.append(needed if any(fed) else 0)
    needs_scratch = 0 in capacities
    return KVPlan(
        layout=layout,
        rows=len(prompt_lengths),
        capacities=tuple(capacities),
        scratch_rows=scratch_rows if needs_scratch else 0,
        scratch_capacity=max(prompt_lengths) if needs_scratch else 0,
    )


@dataclass
class _Pair:
    """One layer's buffers: flat memory from the pool and its view [rows, N, T, D]."""

    key_memory: NDArray[np.uint8]
    value_memory: NDArray[np.uint8]
    key: Array
    value: Array


class KVCache:
    """The live caches of one batch. A layer whose pair is None is retired or prompt-only.

    The arrays belong to ``pool``; whoever binds them drops the binding before ``retire``,
    ``release_scratch`` or ``close`` gives them back. A context manager: leaving closes.
    """

    def __init__(self, pool: BufferPool, plan: KVPlan) -> None:
        self.plan = plan
        self._pool = pool
        self._pairs: list[_Pair | None] = []
        self._scratch: _Pair | None = None
        try:
            if plan.scratch_capacity:
                self._scratch = self._acquire(plan.scratch_rows, plan.scratch_capacity)
            for capacity in plan.capacities:
                self._pairs.append(self._acquire(plan.rows, capacity) if capacity else None)
        except CapacityError:
            self.close()
            raise

    def __enter__(self) -> KVCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def is_live(self, layer: int) -> bool:
        """Whether ``layer`` still holds positions for decode steps."""
        return self._pairs[layer] is not None

    def rows(self, layer: int, start: int, stop: int) -> tuple[Array, Array]:
        """Key and value [stop - start, N, T, D] of a live layer: contiguous views."""
        pair = self._pairs[layer]
        assert pair is not None, f"layer {layer} is retired"
        return pair.key[start:stop], pair.value[start:stop]

    def scratch(self, rows: int) -> tuple[Array, Array]:
        """Key and value [rows, N, T, D] that prompt-only layers write in turn."""
        assert self._scratch is not None, "no layer is prompt-only"
        return self._scratch.key[:rows], self._scratch.value[:rows]

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of a row over another, in every live layer."""
        for pair in self._pairs:
            if pair is not None:
                pair.key[target, :, :length] = pair.key[source, :, :length]
                pair.value[target, :, :length] = pair.value[source, :, :length]

    def retire(self, layer: int) -> None:
        """Give a layer's buffers back: no row will run it again."""
        self._give_back(self._pairs[layer])
        self._pairs[layer] = None

    def release_scratch(self) -> None:
        """Give the scratch pair back: the prompt is done."""
        self._give_back(self._scratch)
        self._scratch = None

    def close(self) -> None:
        """Give everything back; idempotent."""
        self.release_scratch()
        for layer in range(len(self._pairs)):
            self.retire(layer)

    def _acquire(self, rows: int, capacity: int) -> _Pair:
        layout = self.plan.layout
        shape = (rows, layout.num_heads, capacity, layout.head_dim)
        nbytes = layout.nbytes(rows, capacity)
        key_memory = self._pool.acquire(nbytes)
        try:
            value_memory = self._pool.acquire(nbytes)
        except CapacityError:
            self._pool.release(key_memory)
            raise
        return _Pair(
            key_memory,
            value_memory,
            key_memory[:nbytes].view(layout.dtype).reshape(shape),  # [rows, N, T, D]
            value_memory[:nbytes].view(layout.dtype).reshape(shape),  # [rows, N, T, D]
        )

    def _give_back(self, pair: _Pair | None) -> None:
        if pair is not None:
            self._pool.release(pair.key_memory)
            self._pool.release(pair.value_memory)
