"""Cutting requests into batches that fit: by rows and by KV memory, before any work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from ...engines.errors import CapacityError, UsageError
from ...engines.manifest import Manifest
from ..kv.cache import KVPlan, plan_kv_cache
from ..kv.layout import KVLayout
from ..kv.reservation import capacity_class, row_class
from ..schedule import ExitSchedule
from ..stitching.slot_limits import SlotLimits
from .requests import Request

# Enough rows for matrix products to run at full speed; more would only cost activation memory.
MAX_PREFILL_TOKENS = 2048


@dataclass(frozen=True)
class Row:
    """One completion to be made: a request and which of its ``n`` completions this is."""

    request: Request
    output_index: int


@dataclass(frozen=True)
class PlannedBatch:
    """Rows of one schedule that decode together, and the memory that they need.

    Each of the first ``num_prompts`` rows brings its request's prompt, which runs in a prefill call
    for each (start, stop) of ``prefill_groups``; the other rows are further completions of them.
    """

    rows: tuple[Row, ...]
    schedule: ExitSchedule
    prefill_groups: tuple[tuple[int, int], ...]
    kv_plan: KVPlan

    @property
    def num_prompts(self) -> int:
        """Distinct prompts of the batch."""
        return self.prefill_groups[-1][1]


@dataclass(frozen=True)
class BatchLimits:
    """What a batch must fit into.

    ``max_prefill_tokens``, padding included, and ``max_prefill_rows`` bound one prefill call (one
    prompt may have more tokens). ``kv_buckets``: static capacities of the engines, ascending; none
    where they take any. ``pads_rows``: steps run on 1, 2, 4, ... rows, up to ``max_batch_size``.
    ``max_prompt_tokens``: of one row, None for no bound but the model's.
    """

    max_batch_size: int
    max_prefill_tokens: int
    max_prefill_rows: int
    kv_bytes: int
    kv_buckets: tuple[int, ...] = ()
    pads_rows: bool = False
    max_prompt_tokens: int | None = None

    @classmethod
    def of(cls, manifest: Manifest, *, max_batch_size: int, kv_bytes: int, on_device: bool) -> Self:
        """The limits of a bundle's engines; those that TensorRT compiled have some of their own.

        Raises UsageError if ``max_batch_size`` is more rows than the engines were built for.
        """
        build = manifest.build
        if build is None:
            return cls(
                max_batch_size, MAX_PREFILL_TOKENS, max_batch_size, kv_bytes, pads_rows=on_device
            )
        if max_batch_size > build.max_batch_size:
            raise UsageError(
                "max_batch_size",
                f"is {max_batch_size}; the engines were built for up to {build.max_batch_size} "
                "rows; lower it, or build them again with --max-batch-size",
            )
        return cls(
            max_batch_size,
            max(MAX_PREFILL_TOKENS, build.max_prompt_len),
            min(max_batch_size, build.max_prefill_rows),
            kv_bytes,
            build.kv_buckets,
            pads_rows=True,
            max_prompt_tokens=build.max_prompt_len,
        )

    def check_prompt(self, subject: str, num_tokens: int) -> Iterator[str]:
        """Say what is wrong with a prompt of ``num_tokens``, if anything."""
        if self.max_prompt_tokens is not None and num_tokens > self.max_prompt_tokens:
            yield (
                f"{subject} has {num_tokens} tokens; the engines were built for prompts of up to "
                f"{self.max_prompt_tokens}; shorten it, or build them again with --max-prompt-len"
            )

    def kv_bucket(self, positions: int) -> int | None:
        """The smallest static capacity that holds ``positions``; None where there are none."""
        return next((bucket for bucket in self.kv_buckets if bucket >= positions), None)

    def slot_limits(self, max_model_len: int | None, longest: int) -> SlotLimits:
        """The limits of a running batch whose rows have up to ``max_model_len`` positions.

        None: ``longest``, the bundle's own. Raises UsageError for more than that, or than the
        largest static capacity.
        """
        positions = longest if max_model_len is None else max_model_len
        if positions > longest:
            raise UsageError(
                "max_model_len", f"is {positions}; the bundle holds {longest} positions; lower it"
            )
        return self._slot_limits(self.max_batch_size, positions, positions)

    def call_limits(self, requests: Sequence[Request], longest: int) -> SlotLimits:
        """The limits of a running batch of ``requests``, all of which are known.

        Capacities are of few sizes, so that calls of like lengths are bound to the same ones.
        """
        rows = max(1, min(self.max_batch_size, sum(one.params.n for one in requests)))
        lengths = (len(one.prompt_token_ids) + one.max_tokens for one in requests)
        positions = max(lengths, default=1)
        return self._slot_limits(
            self.padded_rows(rows), positions, capacity_class(positions, longest)
        )

    @property
    def call_admission(self) -> str:
        """When requests of a call, whose tokens nobody awaits, take the places of those that ended.

        Two prompts share what reading the weights costs, and stand at like depths: 2 to 7 % faster
        than one by one on texts of like length, as fast on others. On a device a quarter of the
        rows together, or fewer after a while: in a simulation of one 9 to 14 % more short texts a
        second than one by one, 7 % fewer of long ones; against static batches 4 % and 60 % more.
        """
        if not self.pads_rows:
            return "gang:min_free=2,hold_ms=1000000"
        return f"gang:min_free={max(2, self.max_batch_size // 4)},hold_ms=50"

    def _slot_limits(self, rows: int, positions: int, capacity: int) -> SlotLimits:
        bucket = self.kv_bucket(max(1, positions - 1))  # the last token is never fed back
        if self.kv_buckets and bucket is None:
            built = ", ".join(map(str, self.kv_buckets))
            raise UsageError(
                "max_model_len",
                f"is {positions}; the engines were built for caches of {built} positions; lower "
                "it, or build them again with --kv-buckets",
            )
        return SlotLimits(
            max_rows=rows,
            max_positions=positions,
            capacity=bucket or capacity,
            kv_bytes=self.kv_bytes,
            bucket=bucket,
            most_prompts=self.max_prefill_rows if self.kv_buckets else None,
            most_prompt_tokens=self.max_prompt_tokens,
        )

    def padded_rows(self, rows: int) -> int:
        """Rows that a step of ``rows`` rows runs on: 5 become 8, unless at most 6 are allowed."""
        if not self.pads_rows:
            return rows
        return row_class(rows, self.max_batch_size)

    def prefill_groups(self, lengths: Sequence[int]) -> list[tuple[int, int]]:
        """Cut consecutive prompts into prefill calls."""
        return prefill_groups(lengths, self.max_prefill_tokens, self.max_prefill_rows)


def plan_batches(
    requests: Sequence[Request],
    schedules: Sequence[ExitSchedule],
    layout: KVLayout,
    limits: BatchLimits,
) -> list[PlannedBatch]:
    """Cut all completions of ``requests`` into batches that fit; request i runs ``schedules[i]``.

    Rows of one batch have one schedule. Longest first, so rows of like length stand together and
    little padding is computed. Raises CapacityError, with the numbers, if a row alone needs more
    than ``limits.kv_bytes``.
    """
    if problems := [
        problem
        for request in requests
        for problem in limits.check_prompt(f"prompt {request.index}", len(request.prompt_token_ids))
    ]:
        raise CapacityError("prompts", *problems)
    groups: dict[ExitSchedule, list[Request]] = {}
    for request, schedule in zip(requests, schedules, strict=True):
        groups.setdefault(schedule, []).append(request)
    return [
        batch
        for schedule, group in groups.items()
        for batch in _cut(_longest_first(group), schedule, layout, limits)
    ]


def prefill_groups(lengths: Sequence[int], max_tokens: int, max_rows: int) -> list[tuple[int, int]]:
    """Cut consecutive prompts into groups of at most ``max_rows``, padded to ``max_tokens``.

    A longer prompt stands alone:

    >>> prefill_groups([5, 5, 5, 20, 3], max_tokens=12, max_rows=8)
    [(0, 2), (2, 3), (3, 4), (4, 5)]
    """
    groups = []
    start = 0
    for stop in range(1, len(lengths) + 1):
        rows = stop + 1 - start
        is_full = rows > max_rows or max(lengths[start : stop + 1]) * rows > max_tokens
        if stop == len(lengths) or is_full:
            groups.append((start, stop))
            start = stop
    return groups


def _longest_first(requests: Sequence[Request]) -> list[Row]:
    """All completions of ``requests``, those of one request side by side."""
    ordered = sorted(
        requests, key=lambda request: (-len(request.prompt_token_ids), -request.max_tokens)
    )
    return [
        Row(request, output_index)
        for request in ordered
        for output_index in range(request.params.n)
    ]


def _cut(
    rows: Sequence[Row], schedule: ExitSchedule, layout: KVLayout, limits: BatchLimits
) -> Iterator[PlannedBatch]:
    """Cut consecutive rows, each batch as large as fits."""
    start = 0
    while start < len(rows):
        batch = _plan(rows[start : start + 1], schedule, layout, limits)
        if batch.kv_plan.nbytes > limits.kv_bytes:
            raise _too_large(batch, limits.kv_bytes)
        for stop in range(start + 2, min(start + limits.max_batch_size, len(rows)) + 1):
            larger = _plan(rows[start:stop], schedule, layout, limits)
            if larger.kv_plan.nbytes > limits.kv_bytes:
                break
            batch = larger
        yield batch
        start += len(batch.rows)


def _plan(
    rows: Sequence[Row], schedule: ExitSchedule, layout: KVLayout, limits: BatchLimits
) -> PlannedBatch:
    firsts = {row.request.index: row for row in reversed(rows)}
    prompts = [row for row in rows if firsts[row.request.index] is row]
    siblings = [row for row in rows if firsts[row.request.index] is not row]
    groups = limits.prefill_groups([len(row.request.prompt_token_ids) for row in prompts])
    kv_plan = plan_kv_cache(
        layout,
        schedule,
        [len(row.request.prompt_token_ids) for row in rows],
        [row.request.max_tokens for row in rows],
        scratch_rows=max(stop - start for start, stop in groups),
        rows=limits.padded_rows(len(rows)),
        buckets=limits.kv_buckets,
    )
    return PlannedBatch((*prompts, *siblings), schedule, tuple(groups), kv_plan)


def _too_large(batch: PlannedBatch, kv_limit: int) -> CapacityError:
    request = batch.rows[0].request
    return CapacityError(
        f"prompt {request.index}",
        f"{len(request.prompt_token_ids)} tokens and max_tokens {request.max_tokens} need "
        f"{batch.kv_plan.nbytes:,} bytes of KV cache; kv_memory allows {kv_limit:,}; "
        "raise it, shorten the prompt, lower max_tokens or use a schedule with fewer layers",
    )
