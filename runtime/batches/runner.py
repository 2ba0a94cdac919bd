"""Runs requests in batches, one batch after another, on the engines that it loads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import cast

from pydantic import Field

from ...engines.backends.session import EngineBackend
from ...engines.bundle import EngineBundle
from ...engines.checking import MemorySize, ValidatedConfig
from ...engines.errors import UsageError
from ...engines.manifest import TensorRole
from ..kv.layout import KVLayout
from ..kv.pool import BufferPool
from ..kv.slots import SlotCache
from ..schedule import ExitSchedule
from ..schedule.text import format_schedule
from ..stitching.host import HostStitcher
from ..stitching.host_slots import HostSlotStitcher
from ..stitching.loaded import LoadedEngines
from ..stitching.loading import load_stitcher
from ..stitching.slots import SlotStitcher
from ..stitching.stitcher import Stitcher
from ..tokens.outputs import CompletionOutput, RequestOutput, ScoreOutput, StreamDelta
from ..tokens.tokenizer import Tokenizer
from .batch import Batch
from .planning import BatchLimits, PlannedBatch, plan_batches
from .requests import Request
from .scoring import Scorer, ScoreRequest
from .sequence import RunningSequence

_MOST_ROWS = 1 << 16  # in a batch: what is planned for each takes memory at once


class GeneratorConfig(ValidatedConfig):
    """What a generator may hold at once; ``kv_memory`` is bytes, or a text such as ``2GiB``."""

    max_batch_size: int = Field(default=8, ge=1, le=_MOST_ROWS)
    kv_memory: MemorySize | None = Field(default=None, ge=1)


@dataclass(frozen=True)
class Step:
    """What one step added: a delta a row, and the sequences that it finished."""

    deltas: list[StreamDelta]
    finished: list[RunningSequence]


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

    def run(
        self,
        requests: Sequence[Request],
        schedules: Sequence[ExitSchedule],
        cancelled: Callable[[], bool],
    ) -> Iterator[Step]:
        """Plan at once; return the steps of all batches, each run as it is asked for.

        ``cancelled`` is asked between steps; once true, unfinished sequences end with "abort".
        Raises what `plan_batches`, `LoadedEngines.exclusive` and `LoadedEngines.run` raise.
        """
        call_start = perf_counter()
        batches = plan_batches(requests, schedules, self.layout, self.limits)
        self.engines.require_usable()
        return self._steps(batches, cancelled, call_start)

    @contextmanager
    def slots(self) -> Iterator[SlotStitcher]:
        """Hold the engines, and the slots of rows that come and go, until the block is left.

        Raises UsageError for engines on a device, which run static batches.
        """
        if self.engines.device is not None:
            raise UsageError("engine", "runs on CPUs; on a device, use generate and stream")
        with self.engines.exclusive(planned_bytes=0), self.engines.slots(self._make_slots) as slots:
            yield slots

    def _make_slots(self, stitcher: Stitcher, pool: BufferPool) -> SlotStitcher:
        cache = SlotCache(
            pool,
            self.layout,
            num_layers=self._model.num_layers,
            max_rows=self.limits.max_batch_size,
            max_positions=self._model.max_seq_len,
            limit=self.limits.kv_bytes,
        )
        return HostSlotStitcher(cast(HostStitcher, stitcher), cache, pool)

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
                    yield Step([row.abort() for row in rows], rows)
                    continue
                with engines.cache(planned.kv_plan) as cache:
                    batch = Batch(planned, cache, rows)
                    yield _step(engines.run(batch.advance), rows)
                    while not batch.is_finished:
                        deltas = batch.abort() if cancelled() else engines.run(batch.advance)
                        yield _step(deltas, rows)


def gather_outputs(
    requests: Sequence[Request],
    schedules: Sequence[ExitSchedule],
    steps: Iterable[Step],
    on_progress: Callable[[Sequence[StreamDelta]], None] | None = None,
) -> list[RequestOutput]:
    """Take all ``steps`` and return the results of ``requests``, each at its schedule, in order.

    ``on_progress`` gets the deltas of each step.
    """
    outputs: dict[tuple[int, int], CompletionOutput] = {}
    for step in steps:
        for row in step.finished:
            outputs[row.request_index, row.output_index] = row.output()
        if on_progress is not None:
            on_progress(step.deltas)
    texts = {schedule: format_schedule(schedule) for schedule in set(schedules)}
    return [
        RequestOutput(
            request_id=str(request.index),
            prompt=request.prompt,
            prompt_token_ids=request.prompt_token_ids,
            outputs=tuple(outputs[request.index, i] for i in range(request.params.n)),
            finished=True,
            schedule=texts[schedule],
        )
        for request, schedule in zip(requests, schedules, strict=True)
    ]


def _step(deltas: list[StreamDelta], rows: Sequence[RunningSequence]) -> Step:
    ended = {
        (delta.request_index, delta.index) for delta in deltas if delta.finish_reason is not None
    }
    finished = [row for row in rows if (row.request_index, row.output_index) in ended]
    return Step(deltas, finished)
