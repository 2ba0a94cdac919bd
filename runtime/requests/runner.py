"""The engines of a generator, loaded, with slots and memory for what runs on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from pydantic import Field

from ...engines.backends.session import EngineBackend
from ...engines.bundle import EngineBundle
from ...engines.checking import MemorySize, ValidatedConfig
from ...engines.manifest import TensorRole
from ..kv.layout import KVLayout
from ..kv.pool import BufferPool
from ..schedule import ExitSchedule
from ..stitching.loaded import LoadedEngines
from ..stitching.loading import load_stitcher
from ..stitching.slot_limits import SlotLimits
from ..stitching.slot_stitchers import make_slots
from ..stitching.slots import SlotStitcher
from ..tokens.outputs import ScoreOutput
from ..tokens.tokenizer import Tokenizer
from .planning import BatchLimits
from .request import Request
from .scoring import Scorer, ScoreRequest

_MOST_ROWS = 1 << 16  # in a batch: what is planned for each takes memory at once


class GeneratorConfig(ValidatedConfig):
    """What a generator may hold at once; ``kv_memory`` is bytes, or a text such as ``2GiB``.

    Without one, each of ``kv_shares`` processes takes an equal part of what one alone would.
    """

    max_batch_size: int = Field(default=8, ge=1, le=_MOST_ROWS)
    kv_memory: MemorySize | None = Field(default=None, ge=1)
    kv_shares: int = Field(default=1, ge=1)


class BatchRunner:
    """The engines of ``bundle``, loaded by ``backend``, and the limits of what they run at once.

    One call at a time, see `LoadedEngines`.
    """

    def __init__(
        self,
        bundle: EngineBundle,
        backend: EngineBackend,
        config: GeneratorConfig,
        tokenizer: Tokenizer | None,
    ) -> None:
        self._model = bundle.manifest.model
        self._tokenizer = tokenizer
        self.layout = KVLayout.of(bundle.manifest.layers[0].tensor(TensorRole.PAST_KEY))
        on_device = backend.device is not None
        limits = BatchLimits.of(
            bundle.manifest,
            max_batch_size=config.max_batch_size,
            kv_bytes=config.kv_memory or 0,
            on_device=on_device,
        )
        stitcher = load_stitcher(bundle, backend, limits.max_batch_size, limits.padded_rows)
        # What is free is known once the engines are loaded.
        kv_bytes = config.kv_memory or backend.memory.available_bytes() // config.kv_shares
        self.limits = replace(limits, kv_bytes=kv_bytes)
        pool = BufferPool(backend.memory, kv_bytes, keeps_idle=on_device)
        self.engines = LoadedEngines(stitcher, backend, pool)
        self.scorer = Scorer(pool, self.layout, self.limits, self._model, tokenizer)

    @contextmanager
    def holding(self, slots: SlotStitcher, *, lasts: bool = False) -> Iterator[None]:
        """Hold the engines for ``slots`` until the block is left, which closes them.

        ``lasts``: see `LoadedEngines.exclusive`.
        """
        with (
            self.engines.exclusive(planned_bytes=0, lasts=lasts),
            self.engines.slots(slots),
        ):
            yield

    def make_slots(self, max_model_len: int | None, *, keeps_prefixes: bool) -> SlotStitcher:
        """Slots for rows that come and go, see `slot_stitchers.make_slots`; no memory yet.

        ``max_model_len``: positions of a row, None for as many as the bundle holds. Raises
        UsageError for more than that.
        """
        limits = self.limits.slot_limits(max_model_len, self._model.max_seq_len)
        return self._make_slots(limits, keeps_prefixes=keeps_prefixes)

    def make_call_slots(self, requests: Sequence[Request]) -> SlotStitcher:
        """Slots with no more memory than ``requests`` need, which are all that come."""
        limits = self.limits.call_limits(requests, self._model.max_seq_len)
        return self._make_slots(limits, exact=True)

    def _make_slots(
        self, limits: SlotLimits, *, exact: bool = False, keeps_prefixes: bool = False
    ) -> SlotStitcher:
        engines, num_layers = self.engines, self._model.num_layers
        stitcher = engines.require_usable()
        return make_slots(
            stitcher,
            engines.pool,
            self.layout,
            num_layers,
            limits,
            exact=exact,
            keeps_prefixes=keeps_prefixes,
        )

    def score(
        self, requests: Sequence[ScoreRequest], schedules: Sequence[ExitSchedule]
    ) -> list[ScoreOutput]:
        """Score one request after another."""
        with self.engines.exclusive(planned_bytes=self.scorer.check(requests)):
            return [
                self.engines.run(partial(self.scorer.score, request=request, schedule=schedule))
                for request, schedule in zip(requests, schedules, strict=True)
            ]
