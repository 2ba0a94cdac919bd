"""Cutting requests into batches that fit: by rows and by KV memory, before any work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..engines.errors import CapacityError
from .kv_cache import KVLayout, KVPlan, plan_kv_cache
from .requests import Request
from .schedule import ExitSchedule


@dataclass(frozen=True)
class Row:
    """One completion to be made: a request and which of its ``n`` completions this is."""

    request: Request
    output_index: int


@dataclass(frozen=True)
class PlannedBatch:
    """Rows that decode together, and the memory that they need."""

    rows: tuple[Row, ...]
    kv_plan: KVPlan


def plan_batches(
    requests: Sequence[Request],
    schedule: ExitSchedule,
    layout: KVLayout,
    *,
    max_batch_size: int,
    max_prefill_tokens: int,
    kv_limit: int,
) -> list[PlannedBatch]:
    """Cut all completions of ``requests``, longest first, into batches that fit.

    Rows of like length stand together, so little padding is computed. Raises CapacityError, with
    the numbers, if a row alone needs more than ``kv_limit`` bytes.
    """
    rows = [
        Row(request, output_index)
        for request in sorted(
            requests, key=lambda request: (-len(request.prompt_token_ids), -request.max_tokens)
        )
        for output_index in range(request.params.n)
    ]
    batches: list[PlannedBatch] = []
    start = 0
    while start < len(rows):
        batch = _plan(rows[start : start + 1], schedule, layout, max_prefill_tokens)
        if batch.kv_plan.nbytes > kv_limit:
            raise _too_large(batch, kv_limit)
        for stop in range(start + 2, min(start + max_batch_size, len(rows)) + 1):
            larger = _plan(rows[start:stop], schedule, layout, max_prefill_tokens)
            if larger.kv_plan.nbytes > kv_limit:
                break
            batch = larger
        batches.append(batch)
        start += len(batch.rows)
    return batches


def prefill_groups(lengths: Sequence[int], max_tokens: int) -> list[tuple[int, int]]:
    """Cut consecutive prompts into groups whose padded size is at most ``max_tokens``.

    A longer prompt stands alone:

    >>> prefill_groups([5, 5, 5, 20, 3], max_tokens=12)
    [(0, 2), (2, 3), (3, 4), (4, 5)]
    """
    groups = []
    start = 0
    for stop in range(1, len(lengths) + 1):
        if stop == len(lengths) or max(lengths[start : stop + 1]) * (stop + 1 - start) > max_tokens:
            groups.append((start, stop))
            start = stop
    return groups


def _plan(
    rows: list[Row], schedule: ExitSchedule, layout: KVLayout, max_prefill_tokens: int
) -> PlannedBatch:
    lengths = [len(row.request.prompt_token_ids) for row in rows]
    groups = prefill_groups(lengths, max_prefill_tokens)
    kv_plan = plan_kv_cache(
        layout,
        schedule,
        lengths,
        [row.request.max_tokens for row in rows],
        scratch_rows=max(stop - start for start, stop in groups),
    )
    return PlannedBatch(tuple(rows), kv_plan)


def _too_large(batch: PlannedBatch, kv_limit: int) -> CapacityError:
    request = batch.rows[0].request
    return CapacityError(
        f"prompt {request.index}",
        f"{len(request.prompt_token_ids)} tokens and max_tokens {request.max_tokens} need "
        f"{batch.kv_plan.nbytes:,} bytes of KV cache; kv_memory allows {kv_limit:,}; "
        "raise it, shorten the prompt, lower max_tokens or use a schedule with fewer layers",
    )
