"""Rows that start together and decode in step; finished rows leave."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from ...engines.memory import Array
from ..kv.cache import KVCache
from ..stitching.stitcher import BatchStitcher
from ..tokens.logits import HostLogits, StepLogits
from ..tokens.outputs import StreamDelta
from .planning import PlannedBatch
from .sequence import RunningSequence


class Batch:
    """One batch from its prompts to its last token, a step at a time.

    All rows have generated equally many tokens at any time, so one plan serves them all. Rows
    0 … n-1 of the cache belong to the n unfinished sequences; when a row finishes, the last row
    moves into its gap. ``sequences``: those of ``planned.rows``, in order.
    """

    def __init__(
        self, planned: PlannedBatch, cache: KVCache, sequences: Sequence[RunningSequence]
    ) -> None:
        self._planned = planned
        self._cache = cache
        self._schedule = planned.schedule
        self._rows = list(sequences)
        self._num_steps = 0

    @property
    def is_finished(self) -> bool:
        """Whether no row is left."""
        return not self._rows

    def advance(self, stitcher: BatchStitcher) -> list[StreamDelta]:
        """Run the prompts, then a step a call: one more token, and delta, a row."""
        deltas = self._step(stitcher) if self._num_steps else self._prefill(stitcher)
        self._num_steps += 1
        return deltas

    def abort(self) -> list[StreamDelta]:
        """End the rows that are left as cancelled."""
        deltas = [row.abort() for row in self._rows]
        self._rows.clear()
        return deltas

    def _prefill(self, stitcher: BatchStitcher) -> list[StreamDelta]:
        """Run each distinct prompt once; further completions of it copy its cache."""
        schedule = self._schedule
        prompts = [row.prompt_token_ids for row in self._rows[: self._planned.num_prompts]]
        sources: dict[int, int] = {}  # request -> row of its prompt
        logits: dict[int, Array] = {}  # request -> float32 [V]
        for start, stop in self._planned.prefill_groups:
            group_logits = stitcher.prefill(
                self._cache,
                start,
                prompts[start:stop],
                [
                    [schedule.prompt_prefix(layer, len(prompt)) for prompt in prompts[start:stop]]
                    for layer in range(schedule.num_layers)
                ],
            )
            for index, row in enumerate(self._rows[start:stop]):
                sources[row.request_index] = start + index
                logits[row.request_index] = group_logits[index]
        self._cache.release_scratch()
        for target in range(len(prompts), len(self._rows)):
            row = self._rows[target]
            self._cache.copy_row(sources[row.request_index], target, len(row.prompt_token_ids))
        row_logits = [logits[row.request_index] for row in self._rows]
        depths = [
            schedule.prompt_budget(length - 1, length)
            for length in (len(row.prompt_token_ids) for row in self._rows)
        ]
        return self._accept(HostLogits(row_logits), depths, step_start=None)

    def _step(self, stitcher: BatchStitcher) -> list[StreamDelta]:
        """Feed the last token of every row back and sample the next one."""
        start = perf_counter()
        plan = self._schedule.plan(self._num_steps - 1)
        stitcher.retire(self._cache, plan)
        tokens = [row.token_ids[-1] for row in self._rows]
        positions = [row.num_positions for row in self._rows]
        logits = stitcher.decode(self._cache, plan, tokens, positions)
        return self._accept(logits, [len(plan)] * len(self._rows), step_start=start)

    def _accept(
        self, logits: StepLogits, layers: Sequence[int], step_start: float | None
    ) -> list[StreamDelta]:
        """Sample a token for every row, row r's from ``layers[r]`` layers; finished rows leave."""
        deltas = [
            row.accept(logits.sample(index, row.sampler), depth)
            for index, (row, depth) in enumerate(zip(self._rows, layers, strict=True))
        ]
        for row in self._rows:
            row.record_time(step_start)
        for index in reversed(range(len(self._rows))):
            if self._rows[index].finish_reason is not None:
                self._leave(index)
        return deltas

    def _leave(self, index: int) -> None:
        last = self._rows.pop()
        if index < len(self._rows):
            self._cache.copy_row(len(self._rows), index, last.num_positions)
            self._rows[index] = last
