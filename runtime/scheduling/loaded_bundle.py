"""LoadedBundle: all that running batches, calls and scoring share of one opened bundle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from ...engines.backends.session import EngineBackend
from ...engines.bundle import EngineBundle
from ...engines.manifest import ModelSpec, TensorRole
from ..kv.buffers import BufferPool, KVLayout
from ..opening import OpenOptions
from ..requests.planning import BatchLimits
from ..requests.request import Request
from ..schedule.request_schedules import ScheduleResolver
from ..stitching.factory import make_slots
from ..stitching.loaded import LoadedEngines
from ..stitching.loading import load_stitcher
from ..stitching.protocol import SlotLimits, SlotStitcher
from ..tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class LoadedBundle:
    """A bundle with its engines loaded; `LoadedEngines` guards who uses them."""

    model: ModelSpec
    tokenizer: Tokenizer | None
    schedules: ScheduleResolver
    layout: KVLayout
    limits: BatchLimits
    engines: LoadedEngines

    @classmethod
    def load(
        cls,
        bundle: EngineBundle,
        backend: EngineBackend,
        options: OpenOptions,
        tokenizer: Tokenizer | None,
        schedules: ScheduleResolver,
    ) -> Self:
        """Load the engines of ``bundle`` by ``backend``, which belongs to the result."""
        on_device = backend.device is not None
        limits = BatchLimits.of(
            bundle.manifest,
            max_batch_size=options.max_batch_size,
            kv_bytes=options.kv_memory or 0,
            on_device=on_device,
        )
        stitcher = load_stitcher(bundle, backend, limits.max_batch_size, limits.padded_rows)
        # The free memory is known once the engines are loaded.
        kv_bytes = options.kv_memory or backend.memory.available_bytes() // options.kv_shares
        pool = BufferPool(backend.memory, kv_bytes, keeps_idle=on_device)
        return cls(
            model=bundle.manifest.model,
            tokenizer=tokenizer,
            schedules=schedules,
            layout=KVLayout.of(bundle.manifest.layers[0].tensor(TensorRole.PAST_KEY)),
            limits=replace(limits, kv_bytes=kv_bytes),
            engines=LoadedEngines(stitcher, backend, pool),
        )

    def batch_slots(self, max_model_len: int | None, *, keeps_prefixes: bool) -> SlotStitcher:
        """Return slots for requests that come and go; they take no memory yet.

        Each row has up to ``max_model_len`` positions, or without it as many as the bundle holds.
        Raises UsageError for more than that.
        """
        limits = self.limits.slot_limits(max_model_len, self.model.max_seq_len)
        return self._slots(limits, keeps_prefixes=keeps_prefixes)

    def call_slots(self, requests: Sequence[Request]) -> SlotStitcher:
        """Return slots with no more memory than ``requests`` need, where no other will come."""
        limits = self.limits.call_limits(requests, self.model.max_seq_len)
        return self._slots(limits, exact=True)

    def _slots(
        self, limits: SlotLimits, *, exact: bool = False, keeps_prefixes: bool = False
    ) -> SlotStitcher:
        return make_slots(
            self.engines.require_usable(),
            self.engines.pool,
            self.layout,
            self.model.num_layers,
            limits,
            exact=exact,
            keeps_prefixes=keeps_prefixes,
        )
