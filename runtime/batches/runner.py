"""Runs requests in batches, one batch after another, on the engines that it loads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import cast

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
from ..stitching.stitcher import BatchStitcher, Stitcher
from ..tokens.outputs import ScoreOutput, StreamDelta
from ..tokens.tokenizer import Tokenizer
from .batch import Batch
from .planning import BatchLimits, PlannedBatch, plan_batches
from .requests import Request
from .scoring import Scorer, ScoreRequest
from .sequence import RunningSequence
from .step import Step

_MOST_ROWS = 1 << 16  # in a batch: what is planned for each takes memory at once


class GeneratorConfig(ValidatedConfig):
    """What a generator may hold at once; ``kv_memory`` is bytes, or a text such as ``2GiB``."""

    max_batch_size: int = Field(default=8, ge=1, le=_MOST_ROWS)
    kv_memory: MemorySize | None = Field(default=None, ge=1)


class BatchRunner:
    """The engines of ``bundle``, loaded by ``backend``, and the limits of what they run at once.

    Requests have been checked; request i runs ``schedules[i]``. One call at a time, see
    `LoadedEngines`.
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
        kv_bytes = config.kv_memory or backend.memory.available_bytes()
        self.limits = replace(limits, kv_bytes=kv_bytes)
        pool = BufferPool(backend.memory, kv_bytes, keeps_idle=on_device)
        self.engines = LoadedEngines(stitcher, backend, pool)
        self.scorer = Scorer(pool, self.layout, self.limits, self._model, tokenizer)

    def run_batches(
        self,
        requests: Sequence[Request],
        schedules: Sequence[ExitSchedule],
        cancelled: Callable[[], bool],
    ) -> Iterator[Step]:
        """Plan at once; return the steps of all batches, each run as it is asked for: on a device.

        ``cancelled`` is asked between steps; once true, unfinished sequences end with "abort".
        Raises what `plan_batches`, `LoadedEngines.exclusive` and `LoadedEngines.run` raise.
        """
        call_start = perf_counter()
        batches = plan_batches(requests, schedules, self.layout, self.limits)
        self.engines.require_usable()
        return self._steps(batches, cancelled, call_start)

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

    def _steps(
        self, batches: Sequence[PlannedBatch], cancelled: Callable[[], bool], call_start: float
    ) -> Iterator[Step]:
        engines = self.engines
        most_bytes = max((planned.kv_plan.nbytes for planned in batches), default=0)
        with engines.exclusive(planned_bytes=most_bytes):
            for planned in batches:
                rows = [
                    RunningSequence(row, self._model, self._tokenizer, call_start)
                    for row in planned.rows
                ]
                if cancelled():
                    yield _step([row.abort() for row in rows], rows)
                    continue
                with engines.cache(planned.kv_plan) as cache:
                    batch = Batch(planned, cache, rows)

                    def advance(stitcher: Stitcher, batch: Batch = batch) -> list[StreamDelta]:
                        return batch.advance(cast(BatchStitcher, stitcher))

                    yield _step(engines.run(advance), rows)
                    while not batch.is_finished:
                        deltas = batch.abort() if cancelled() else engines.run(advance)
                        yield _step(deltas, rows)


def _step(deltas: list[StreamDelta], rows: Sequence[RunningSequence]) -> Step:
    ended = {
        (delta.request_index, delta.index) for delta in deltas if delta.finish_reason is not None
    }
    finished = [row for row in rows if (row.request_index, row.output_index) in ended]
    return Step(deltas, [(row.request_index, row.output()) for row in finished])
