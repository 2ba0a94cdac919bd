"""Rows that start together and decode in step; finished rows leave."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from time import perf_counter

from ...engines.memory import Array
from ..kv.cache import KVCache
from ..schedule import ExitSchedule
from ..stitching.stitcher import Stitcher
from ..tokens.logits import HostLogits, StepLogits
from ..tokens.outputs import StreamDelta
from .planning import BatchLimits
from .sequence import RunningSequence


class Batch:
    """One batch from its prompts to its last token.

    All rows have generated equally many tokens at any time, so one plan serves them all. Rows
    0 … n-1 of the cache belong to the n unfinished sequences; when a row finishes, the last row
    moves into its gap.
    """

    def __init__(
        self,
        stitcher: Stitcher,
        cache: KVCache,
        schedule: ExitSchedule,
        sequences: Sequence[RunningSequence],
        limits: BatchLimits,
    ) -> None:
        self._stitcher = stitcher
        self._cache = cache
        self._schedule = schedule
        self._limits = limits
        first_rows = {row.request_index: row for row in reversed(sequences)}
        self._prompt_rows = [row for row in sequences if first_rows[row.request_index] is row]
        siblings = [row for row in sequences if first_rows[row.request_index] is not row]
        self._rows = [*self._prompt_rows, *siblings]

    def run(self, cancelled: Callable[[], bool]) -> Generator[list[StreamDelta], None, None]:
        """Yield what each step adds, one delta a row, until every row has finished.

        ``cancelled`` is asked between steps; once true, unfinished rows end with "abort".
        """
        try:
            yield self._prefill()
            index = 0
            while self._rows:
                if cancelled():
                    yield [row.abort() for row in self._rows]
                    return
                yield self._step(index)
                index += 1
        finally:
            self._stitcher.unbind()

    def _prefill(self) -> list[StreamDelta]:
        """Run each distinct prompt once; further completions of it copy its cache."""
        schedule = self._schedule
        lengths = [len(row.prompt_token_ids) for row in self._prompt_rows]
        logits: dict[int, Array] = {}  # request -> float32 [V]
        for start, stop in self._limits.prefill_groups(lengths):
            group = self._prompt_rows[start:stop]
            group_logits = self._stitcher.prefill(
                self._cache,
                start,
                [row.prompt_token_ids for row in group],
                [
                    [schedule.prompt_prefix(layer, length) for length in lengths[start:stop]]
                    for layer in range(schedule.num_layers)
                ],
            )
            logits |= {row.request_index: group_logits[i] for i, row in enumerate(group)}
        self._cache.release_scratch()
        sources = {row.request_index: index for index, row in enumerate(self._prompt_rows)}
        for target in range(len(self._prompt_rows), len(self._rows)):
            row = self._rows[target]
            self._cache.copy_row(sources[row.request_index], target, len(row.prompt_token_ids))
        row_logits = [logits[row.request_index] for row in self._rows]
        depths = [
            schedule.prompt_budget(length - 1, length)
            for length in (len(row.prompt_token_ids) for row in self._rows)
        ]
        return self._accept(HostLogits(row_logits), depths, step_start=None)

    def _step(self, index: int) -> list[StreamDelta]:
        """Feed generated token ``index`` of every row back and sample the next one."""
        start = perf_counter()
        plan = self._schedule.plan(index)
        self._stitcher.retire(self._cache, plan)
        tokens = [row.token_ids[-1] for row in self._rows]
        positions = [row.num_positions for row in self._rows]
        logits = self._stitcher.decode(self._cache, plan, tokens, positions)
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
