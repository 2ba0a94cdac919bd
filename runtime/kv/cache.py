"""KV caches of prompts that run, and the plan of a batch's KV memory.

Worked example (L=6, warm-up 1, budgets 6 4 3 3 2 2 ..., prompt of 10 tokens, max_tokens 8):
layers 1 and 2 run only in the prompt and share one scratch pair of capacity 10; layer 3 last runs
at generated index 0 and holds 10 + 1 positions; layer 4 last runs at index 2 and holds 10 + 3;
layers 0 and 5 always run and hold 10 + 7, since the last token is never fed back.

With ``prompt="decay"`` the prompt's last token runs 4 layers; layers 1 and 2 run its first 3 and 7
tokens, and the pair's capacity is 7. Caches have no holes: budgets never grow along a row, so a
layer that the last prompt token bypasses never runs again for that row and writes the scratch pair,
and a layer with a cache of its own runs the last prompt token and therefore all before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from ...engines.errors import CapacityError
from ...engines.memory import Tensor
from ..schedule import ExitSchedule
from .buffers import BufferPool, CachePair, KVLayout, pooled_size, size_class


@dataclass(frozen=True)
class KVPlan:
    """Capacities of one batch's caches, in positions.

    ``capacities[l]`` is 0 for a layer that runs in the prompt only; such layers are served by one
    scratch pair of ``scratch_rows`` x ``scratch_capacity``. ``bucket`` is the static capacity of
    all engines that run the batch, where they have one.
    """

    layout: KVLayout
    rows: int
    capacities: tuple[int, ...]
    scratch_rows: int = 0
    scratch_capacity: int = 0
    bucket: int | None = None

    def __str__(self) -> str:
        live = [capacity for capacity in self.capacities if capacity]
        return (
            f"{self.nbytes:,} bytes for {self.rows} rows, {len(live)} layers of up to "
            f"{max(live, default=0)} positions in {self.layout.dtype}, and {self.scratch_rows} "
            f"rows of {self.scratch_capacity} for the prompt"
        )

    @property
    def nbytes(self) -> int:
        """The largest number of bytes that the batch takes from the pool at once."""
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
    longest_prompt = max(prompt_lengths)
    longest_prefix = max(  # of a prompt's tokens in a layer without a cache of its own
        (
            schedule.prompt_prefix(layer, longest_prompt)
            for layer, capacity in enumerate(capacities)
            if not capacity
        ),
        default=0,
    )
    return KVPlan(
        layout=layout,
        rows=len(prompt_lengths),
        capacities=tuple(capacities),
        scratch_rows=scratch_rows if longest_prefix else 0,
        scratch_capacity=longest_prefix,
    )


class KVCache:
    """Holds the caches of prompts that run: one per layer, or a scratch pair for all in turn.

    The arrays belong to ``pool``; bindings to them must be dropped before ``close`` gives them
    back. As a context manager it closes on exit.
    """

    def __init__(self, pool: BufferPool, plan: KVPlan) -> None:
        self.plan = plan
        self._pool = pool
        self._pairs: list[CachePair | None] = []
        self._scratch: CachePair | None = None
        with ExitStack() as on_failure:
            on_failure.callback(self.close)
            try:
                self._acquire_all()
            except CapacityError as error:
                raise CapacityError(
                    error.subject, *error.problems, f"the batch's plan is {plan}"
                ) from error
            on_failure.pop_all()

    def __enter__(self) -> KVCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def rows(self, layer: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return key and value [stop - start, N, T, W] of a layer as contiguous views."""
        pair = self._pairs[layer]
        assert pair is not None, f"layer {layer} writes the scratch pair"
        return pair.key[start:stop], pair.value[start:stop]

    def scratch(self, rows: int) -> tuple[Tensor, Tensor]:
        """Return key and value [rows, N, T, W] that prompt-only layers write in turn."""
        assert self._scratch is not None, "no layer is prompt-only"
        return self._scratch.key[:rows], self._scratch.value[:rows]

    def close(self) -> None:
        """Give all buffers back to the pool; idempotent."""
        for pair in (self._scratch, *self._pairs):
            if pair is not None:
                pair.release(self._pool)
        self._scratch = None
        self._pairs.clear()

    def _acquire_all(self) -> None:
        plan = self.plan
        if plan.scratch_capacity:
            self._scratch = self._acquire("scratch", plan.scratch_rows, plan.scratch_capacity)
        for layer, capacity in enumerate(plan.capacities):
            pair = self._acquire(f"prompt {layer}", plan.rows, capacity) if capacity else None
            self._pairs.append(pair)

    def _acquire(self, user: str, rows: int, capacity: int) -> CachePair:
        return CachePair.acquire(self._pool, self.plan.layout, rows, capacity, user)


@dataclass(frozen=True)
class Reservation:
    """Positions that one row takes in each layer's cache.

    ``capacities[l]`` is 0 for a layer that runs in the row's prompt only. Worked (L=6, warm-up 1,
    budgets 6 4 3 3 2 2, prompt of 10 tokens, max_tokens 8): (17, 0, 0, 11, 13, 17), as in
    ``KVPlan``.
    """

    capacities: tuple[int, ...]

    @classmethod
    def of(
        cls, layout: KVLayout, schedule: ExitSchedule, prompt_length: int, max_tokens: int
    ) -> Self:
        """Return what a prompt and up to ``max_tokens`` generated tokens need at ``schedule``."""
        plan = plan_kv_cache(layout, schedule, [prompt_length], [max_tokens], scratch_rows=1)
        return cls(plan.capacities)


def row_class(rows: int, most: int) -> int:
    """Round up to 1, 2, 4, 8, … rows, at most ``most``, so that buffers seldom grow."""
    return min(1 << (rows - 1).bit_length(), most)


def capacity_class(positions: int, most: int) -> int:
    """Round up to four sizes per octave from 16 positions on, at most ``most``."""
    return min(size_class(positions, 16), most)


@dataclass(frozen=True)
class SlotSizes:
    """Computes the size of a layer's buffers from the rows and positions that are reserved.

    Sizes are rounded up to classes, at most ``most_rows`` and ``most_positions``, so that buffers
    seldom grow. With ``exact`` they are exactly what is reserved, which is cheapest when the
    longest request comes first. With a ``capacity`` every row has that many positions, and there
    are at least ``least_rows`` rows.
    """

    most_rows: int
    most_positions: int
    exact: bool = False
    capacity: int | None = None
    least_rows: int = 1

    def of(self, rows: int, positions: int) -> tuple[int, int]:
        """Return the buffers' rows and positions where ``rows`` reserve up to ``positions``."""
        if self.exact:
            return rows, positions
        rows = max(self.least_rows, row_class(rows, self.most_rows))
        return rows, self.capacity or capacity_class(positions, self.most_positions)
