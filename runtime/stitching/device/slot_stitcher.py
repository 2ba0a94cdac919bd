"""DeviceSlotStitcher: steps of a running batch on a device.

A step is one upload, one graph and one small download.
"""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from ....engines.errors import UsageError
from ...kv.buffers import BufferPool, KVLayout, pooled_size
from ...kv.cache import SlotCache, SlotSizes
from ...schedule import LayerPlan
from ...tokens.sampler import CandidateLogits, HostLogits
from ..protocol import DraftRow, SlotLimits, StepRow
from ..slot_stitcher import SlotStitcher
from .rows import StepLayout
from .steps import DeviceSteps
from .stitcher import DeviceStitcher


class DeviceSlotStitcher(SlotStitcher):
    """Runs steps on the engines of a `DeviceStitcher`, which owns them and the steps' graphs."""

    def __init__(
        self, engines: DeviceStitcher, cache: SlotCache, pool: BufferPool, limits: SlotLimits
    ) -> None:
        self._loaded: DeviceStitcher | None = engines
        super().__init__(cache, pool, len(engines.layers(limits.bucket)), limits)
        self._layout: tuple[tuple[int, tuple[int, ...]], StepLayout] | None = None

    @override
    def step(self, rows: Sequence[StepRow]) -> CandidateLogits:
        for row in rows:
            if len(row.tokens) != 1:
                raise UsageError(
                    f"row {row.row}",
                    f"feeds {len(row.tokens)} tokens in one pass; on devices a row feeds one token "
                    "per pass: several are not built yet",
                )
        for row in rows:
            self._leave_bypassed(row)
        self.steps.run(self._lay_out(rows), rows, self._cache.first)
        self._cache.set_lengths([row.row for row in rows], [row.position + 1 for row in rows])
        return self._engines.buffers.candidate_logits(len(rows))

    @override
    def draft(
        self, rows: Sequence[DraftRow], plan: LayerPlan, *, narrow: bool = False
    ) -> HostLogits:
        raise UsageError("draft", "by layers needs the CPU; on devices it is not built yet")

    @override
    def follow(self, row: int, tokens: Sequence[int], start: int, plan: LayerPlan) -> None:
        raise UsageError("draft", "by layers needs the CPU; on devices it is not built yet")

    def reset(self) -> None:
        """Free all rows and graphs after a failure: both may be wrong."""
        super().reset()
        self.steps.clear()

    @override
    def close(self) -> None:
        super().reset()
        self._loaded = None  # a stream that nobody reads may hold this for long

    @property
    def steps(self) -> DeviceSteps:
        """The steps over slots of this capacity; their graphs outlive the slots."""
        return self._engines.steps(self.limits.capacity, self.limits.bucket)

    @property
    @override
    def _engines(self) -> DeviceStitcher:
        assert self._loaded is not None, "closed"
        return self._loaded

    @override
    def _unbind(self) -> None:
        """Do nothing: bindings hold addresses, not buffers."""

    def _lay_out(self, rows: Sequence[StepRow]) -> StepLayout:
        """Return the last layout, or a new one if a row has come, gone or left a layer."""
        made_of = self._cache.version, tuple(row.row for row in rows)
        if self._layout is None or self._layout[0] != made_of:
            residents = [self._cache.residents(layer) for layer in range(self._num_layers)]
            layout = StepLayout.of(made_of[1], residents, self._engines.max_rows)
            self._layout = made_of, layout
        return self._layout[1]


def device_slot_cache(
    pool: BufferPool, layout: KVLayout, num_layers: int, limits: SlotLimits
) -> SlotCache:
    """Make slots of ``capacity`` positions each, to which engines are bound.

    If there is memory for ``max_rows`` slots in all layers, and for prompts and a scored text
    besides, buffers have that size from the start and are kept, and with them all captured graphs.
    Otherwise they grow and are freed as on the host.
    """

    def pair_bytes(rows: int) -> int:
        return 2 * pooled_size(layout.nbytes(rows, limits.capacity))

    prompts = max(pair_bytes(limits.max_rows), num_layers * pair_bytes(1)) + pair_bytes(1)
    has_room = num_layers * pair_bytes(limits.max_rows) + prompts <= limits.kv_bytes
    return SlotCache(
        pool,
        layout,
        num_layers=num_layers,
        limit=limits.kv_bytes,
        sizes=SlotSizes(
            limits.max_rows,
            limits.max_positions,
            capacity=limits.capacity,
            least_rows=limits.max_rows if has_room else 1,
        ),
        keeps=has_room,
    )
