"""HostSlotStitcher: passes of a running batch on the host."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from ...kv.buffers import BufferPool
from ...kv.cache import SlotCache
from ...kv.prefixes import PrefixCache
from ...schedule import LayerPlan
from ...tokens.logits import HostLogits
from ..protocol import DraftRow, SlotLimits, StepRow
from ..slot_stitcher import SlotStitcher
from .passes import HostPasses
from .stitcher import HostStitcher


class HostSlotStitcher(SlotStitcher):
    """Runs passes on the engines of a `HostStitcher`, which it does not own."""

    def __init__(
        self,
        engines: HostStitcher,
        cache: SlotCache,
        pool: BufferPool,
        limits: SlotLimits,
        prefixes: PrefixCache | None,
    ) -> None:
        super().__init__(cache, pool, len(engines.layers), limits, prefixes)
        self._loaded: tuple[HostStitcher, HostPasses] | None
        self._loaded = engines, HostPasses(engines, cache)

    @property
    @override
    def _engines(self) -> HostStitcher:
        assert self._loaded is not None, "closed"
        return self._loaded[0]

    @property
    def _passes(self) -> HostPasses:
        assert self._loaded is not None, "closed"
        return self._loaded[1]

    @override
    def step(self, rows: Sequence[StepRow], ahead: Sequence[StepRow] = ()) -> HostLogits:
        if any(len(row.tokens) != 1 for row in rows):
            self._passes.check(rows)
        for row in rows:
            self._leave_bypassed(row)
        return self._passes.run(rows)

    @override
    def draft(self, rows: Sequence[DraftRow], plan: LayerPlan) -> HostLogits:
        return self._passes.draft(rows, plan)

    @property
    @override
    def has_found_route(self) -> bool:
        return self._loaded is not None and self._passes.has_found_route

    @override
    def close(self) -> None:
        self.reset()
        self._loaded = None  # a stream that nobody reads may hold this for long

    @override
    def _unbind(self) -> None:
        if self._loaded is not None:
            self._passes.forget()
