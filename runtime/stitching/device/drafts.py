"""Draft steps on a device: one token of some rows through some of the layers."""

from __future__ import annotations

from collections.abc import Sequence

from ...kv.cache import SlotCache
from ...schedule import LayerPlan
from ...tokens.logits import StepLogits
from ..draft_rows import DraftRows
from ..protocol import DraftRow
from .rows import StepLayout
from .stitcher import DeviceStitcher, StepKind

_MOST_LAYOUTS = 16  # rows stop drafting after different numbers of tokens


class DeviceDrafts:
    """Runs draft steps as steps of one token per row in which no row leaves a layer.

    A layer is bound to its first slots, so all rows in the slots of the plan's layers take part,
    and the head scores all of them. A row that does not draft feeds token 0 at a position that its
    next pass overwrites before reading it. Slots hold that position in every layer, even in one
    that the row leaves in that pass, where nothing reads it.

    Worked: rows 7, 8, 9 have 5, 6, 9 positions; 9 and 7 draft. The first step feeds 9, 7, 8 at
    positions 9, 5, 6, the second at 10, 6, 6; the first two logits of each are those of 9 and 7.
    """

    def __init__(self, engines: DeviceStitcher, cache: SlotCache) -> None:
        self._engines = engines
        self._cache = cache
        self._num_layers = cache.memory.num_layers  # of the model
        self._version = cache.version  # of the slots to which the layouts belong
        self._layouts: dict[tuple[tuple[int, ...], LayerPlan], tuple[DraftRows, StepLayout]] = {}

    def run(self, rows: Sequence[DraftRow], plan: LayerPlan) -> StepLogits:
        """Run a draft step; see `SlotStitcher.draft`."""
        drafting, layout = self._lay_out(rows, plan)
        drafting.require_positions(self._cache, rows)
        fed = drafting.fed(self._cache, rows)
        drafts = self._engines.drafts
        narrow = drafts is not None and drafts.head_tokens is not None
        kind = StepKind(narrow=narrow)
        steps = self._engines.steps(self._cache.memory.limits, kind)
        return steps.enqueue(layout, fed, self._cache.first).wait()

    def _lay_out(self, rows: Sequence[DraftRow], plan: LayerPlan) -> tuple[DraftRows, StepLayout]:
        """Return the rows and the layout of a step, perhaps those of an earlier one like it."""
        key = tuple(row.row for row in rows), plan
        if self._version != self._cache.version or len(self._layouts) > _MOST_LAYOUTS:
            self._version = self._cache.version
            self._layouts.clear()
        if key not in self._layouts:
            found = DraftRows.of(self._cache, rows, plan)
            residents = [found.residents.get(layer, ()) for layer in range(self._num_layers)]
            numbers = [*found.numbers, *found.others]
            layout = StepLayout.of(numbers, residents, self._engines.max_rows)
            self._layouts[key] = found, layout
        return self._layouts[key]
