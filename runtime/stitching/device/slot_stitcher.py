"""DeviceSlotStitcher: steps of a running batch on a device.

A step is one upload, one graph and one small download. While the host draws the tokens of a step,
the device already runs the next step on tokens that it has found itself: the most probable ones, or
guesses of those that the host is about to draw (`DeviceChoice`). Rows that feed several tokens are
padded to 2, 4 or 8 tokens, so that few graphs serve all steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from ....engines.errors import UsageError
from ....engines.memory import DeviceTensor
from ...kv.buffers import BufferPool, pair_bytes
from ...kv.cache import SlotCache
from ...kv.plans import PromptRow, SlotMemory
from ...schedule import LayerPlan
from ...tokens.logits import CandidateLogits, StepLogits
from ..protocol import DraftRow, StepRow, active_counts
from ..slot_stitcher import SlotStitcher
from .buffers import ComingLogits
from .choices import ComingChoice, Confidence
from .drafts import DeviceDrafts
from .rows import StepLayout
from .stitcher import DeviceStitcher, StepKind


class DeviceSlotStitcher(SlotStitcher):
    """Runs steps on the engines of a `DeviceStitcher`, which owns them and the steps' graphs."""

    runs_ahead = True

    def __init__(self, engines: DeviceStitcher, cache: SlotCache, pool: BufferPool) -> None:
        self._loaded: DeviceStitcher | None = engines
        super().__init__(cache, pool)
        self._layout: _LaidOut | None = None  # of the last step
        self._ahead: _Ahead | None = None  # a step that began before its tokens were known
        self._confidence = Confidence()
        self._drafts: DeviceDrafts | None = None  # made at the first draft step

    @override
    def step(self, rows: Sequence[StepRow], ahead: Sequence[StepRow] = ()) -> StepLogits:
        width = _padded_tokens(max(len(row.tokens) for row in rows))
        if any(len(row.tokens) != 1 for row in rows):
            self._require_padded(rows, width)
        begun, self._ahead = self._ahead, None
        indices = None if begun is None else begun.indices_of(rows)
        self.has_run_ahead = indices is not None
        if begun is not None and begun.choice is not None:
            self._confidence.learn(right=indices is not None)
        if begun is None or indices is None:
            if begun is not None:
                begun.coming.done.wait()  # its inputs on the host are about to be overwritten
            coming = self._enqueue(rows, width, {})
            indices = list(range(len(rows)))
        else:
            coming = begun.coming
        logits = coming.logits
        assert isinstance(logits, CandidateLogits), "only draft steps have a narrow head"
        done = coming.done
        # The next pass would overwrite the states that drafts read.
        if ahead and width == 1 and not self.memory.has_draft_layer:
            sources = {row.row: index for row, index in zip(rows, indices, strict=True)}
            self._ahead = self._begin_ahead(ahead, sources, logits)
            if self._ahead is not None and self._ahead.choice is not None:
                done, logits = self._ahead.choice.done, self._ahead.choice.logits
        done.wait()
        return logits if indices == list(range(len(rows))) else logits.of_rows(indices)

    def _begin_ahead(
        self, rows: Sequence[StepRow], sources: Mapping[int, int], last: CandidateLogits
    ) -> _Ahead | None:
        """Enqueue a step on tokens that the device chooses after the last, maybe unfinished step.

        ``sources`` maps row numbers to indices in the ``last`` step's logits. Returns None if a row
        samples its token and the device can't guess it, or has guessed wrong too often.
        """
        best, choice = self._engines.results.best_token_address, None
        addresses = {row.row: best(sources[row.row]) for row in rows}
        if draws := {sources[row.row]: row.draw for row in rows if row.draw is not None}:
            chooser = self._engines.choice
            if chooser is None or not self._confidence.may_guess():
                return None
            choice = chooser.enqueue(draws, last)
            drawn = (row.row for row in rows if row.draw is not None)
            addresses |= {row: chooser.token_address(sources[row]) for row in drawn}
        return _Ahead(rows, self._enqueue(rows, 1, addresses), sources, last, choice)

    def _enqueue(
        self, rows: Sequence[StepRow], width: int, token_addresses: Mapping[int, int]
    ) -> ComingLogits:
        for row in rows:
            self._leave_bypassed(row)
        steps = self._engines.steps(self.limits, StepKind(width))
        layout = self._lay_out(rows, width)
        coming = steps.enqueue(layout, rows, self._cache.first, token_addresses)
        if self.memory.has_draft_layer:
            self._engines.trained.keep(steps, layout)
            places = {number: index * width for index, number in enumerate(layout.order)}
            for row in rows:
                self._held.hold(row.row, row.position, row.tokens, places[row.row])
        lengths = [row.position + len(row.tokens) for row in rows]
        self._cache.set_lengths([row.row for row in rows], lengths)
        return coming

    @override
    def draft(self, rows: Sequence[DraftRow], plan: LayerPlan) -> StepLogits:
        if self._drafts is None:
            self._drafts = DeviceDrafts(self._engines, self._cache)
        return self._drafts.run(rows, plan)

    @override
    def draft_trained(self, rows: Sequence[DraftRow]) -> StepLogits:
        assert self.memory.has_draft_layer, "these slots have no draft layer"
        logits, outputs = self._engines.trained.step(
            self._held.feed(rows),
            [row.row for row in rows],
            partial(self._cache.first, self._num_layers),
        )
        self._held.take(rows, outputs)
        return logits

    @override
    def discard(self, row: int) -> None:
        """Zero the row's slots and free them, and the memory that its prompt may have shared.

        NaN in them would spoil the next row's attention.
        """
        for layer in range(self.memory.num_cached):
            residents = self._cache.residents(layer)
            if row in residents:
                slot = residents.index(row)
                for tensor in self._cache.first(layer, slot + 1):
                    unused = cast(DeviceTensor, tensor[slot:])
                    self._engines.device.fill(unused.address, unused.nbytes, 0)
        self.release(row)
        self._pool.trim()

    def reset(self) -> None:
        """Free all rows and graphs after a failure, because both may be wrong."""
        super().reset()
        self._ahead = None
        self._engines.drop_graphs(self.limits)
        self._pool.trim()

    @override
    def close(self) -> None:
        super().reset()
        self._loaded = self._drafts = self._ahead = (
            None  # a stream that nobody reads may hold this for long
        )

    @override
    def _begin(self, rows: Sequence[PromptRow]) -> None:
        super()._begin(rows)
        if not self.memory.has_draft_layer:
            return
        for index, row in enumerate(rows):
            place = self._engines.trained.hold_end(index, self._held.all_states)
            for number in row.rows:
                self._held.hold(number, len(row.tokens) - 1, row.tokens[-1:], place)

    @property
    @override
    def _engines(self) -> DeviceStitcher:
        assert self._loaded is not None, "closed"
        return self._loaded

    def _require_padded(self, rows: Sequence[StepRow], width: int) -> None:
        """Raise UsageError for tokens that cannot be fed, padded to ``width`` per row.

        Padding writes after a row's own positions, so the slots must hold these positions, too.
        """
        if not self._engines.runs_several_tokens(self._bucket):
            raise UsageError(
                "draft", "feeds several tokens per row; TensorRT's plans take one per step"
            )
        self._require_feedable(rows)
        capacity = self.limits.slot_capacity
        for row in rows:
            if row.position + width > capacity:
                raise UsageError(
                    f"row {row.row}",
                    f"feeds tokens at position {row.position}, padded to {width}; "
                    f"its slots hold {capacity} positions",
                )

    def _lay_out(self, rows: Sequence[StepRow], width: int) -> StepLayout:
        """Return the last layout, or a new one if rows, their layers or their tokens differ."""
        version, made_of = self._cache.version, [(row.row, row.plans) for row in rows]
        last = self._layout
        if last is None or last.version != version or last.made_of != made_of:
            layout = StepLayout.of(
                [row.row for row in rows],
                [self._cache.residents(layer) for layer in range(self._num_layers)],
                self._engines.max_rows,
                width,
                None if width == 1 else self._token_counts(rows),
                self._engines.reads if self.memory.has_draft_layer else (),
            )
            last = self._layout = _LaidOut(version, made_of, layout)
        return last.layout

    def _token_counts(self, rows: Sequence[StepRow]) -> NDArray[np.int64]:
        """Return how many tokens of each row run each layer; the last column is their number."""
        layers = self._num_layers
        return np.array([[*active_counts(row, layers), len(row.tokens)] for row in rows])


@dataclass(frozen=True)
class _Ahead:
    """A step that was enqueued before the tokens of its rows were known.

    It is valid if they turn out to be those that the device chose after the ``last`` step, in whose
    logits the rows have the indices ``sources``: for rows that sample, those of ``choice``, else
    the most probable ones (the device breaks ties as it likes).
    """

    rows: Sequence[StepRow]  # their tokens are placeholders
    coming: ComingLogits
    sources: Mapping[int, int]
    last: CandidateLogits
    choice: ComingChoice | None

    def indices_of(self, rows: Sequence[StepRow]) -> list[int] | None:
        """Return the rows' indices in this step, or None if it ran other tokens than they feed."""
        indices = {row.row: index for index, row in enumerate(self.rows)}
        found = []
        for row in rows:
            index = indices.get(row.row)
            if index is None:
                return None
            begun, source = self.rows[index], self.sources[row.row]
            guesses = self.last.top_token_ids
            if begun.draw is not None:
                assert self.choice is not None
                guesses = self.choice.tokens
            fed = StepRow(row.row, (int(guesses[source, 0]),), begun.position, begun.plans)
            if row != fed:
                return None
            found.append(index)
        return found


@dataclass(frozen=True)
class _LaidOut:
    """A layout, which steps reuse while the cache has this ``version``."""

    version: int
    made_of: list[tuple[int, tuple[LayerPlan, ...]]]  # rows and the plans of their tokens
    layout: StepLayout


def _padded_tokens(tokens: int) -> int:
    """Return the number of tokens per row that a step runs on: 1, 2, 4 or 8."""
    return 1 << (tokens - 1).bit_length()


def device_slot_cache(pool: BufferPool, memory: SlotMemory) -> SlotCache:
    """Create slots of equal capacity, to which engines are bound.

    If there is memory for all slots in all layers, in addition to prompts and a scored text,
    buffers have that size from the start and are kept, and with them all captured graphs. Otherwise
    they grow and are freed as on the host.
    """
    limits, num_layers = memory.limits, memory.num_cached

    of_one, of_all = (
        pair_bytes(memory.layout, (rows, limits.slot_capacity)) for rows in (1, limits.max_rows)
    )
    prompts = max(of_all, num_layers * of_one) + of_one
    has_room = num_layers * of_all + prompts <= limits.kv_bytes
    if has_room:
        memory = replace(memory, least_rows=limits.max_rows)
    return SlotCache(pool, memory, keeps=has_room)
