"""Generator: text from a bundle, at any exit schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Literal

from ..engines.backends.device import Device
from ..engines.backends.session import EngineBackend, open_backend
from ..engines.bundle import EngineBundle
from ..engines.errors import ClosedError, ScheduleError, SkipDecError, UsageError
from ..engines.manifest import TensorRole
from .batches.batch import Batch
from .batches.planning import BatchLimits, PlannedBatch, plan_batches
from .batches.prompts import Prompts
from .batches.requests import Request, make_requests
from .batches.scoring import Scorer, make_score_requests
from .batches.sequence import RunningSequence
from .kv.cache import KVCache, KVLayout
from .kv.pool import BufferPool, KVMemory
from .schedule import ExitSchedule
from .schedule.text import default_horizon, parse_schedule
from .stitching.loading import load_stitcher
from .stitching.stitcher import Stitcher
from .tokens.outputs import CompletionOutput, RequestOutput, ScoreOutput, StreamDelta
from .tokens.sampling import SamplingParams
from .tokens.tokenizer import Tokenizer


def _never() -> bool:
    return False


class Generator:
    """Loads a bundle's engines once and generates with any schedule that fits its depth.

    >>> with Generator.open("opt-1.3b", schedule="2x") as generator:
    ...     outputs = generator.generate(["The capital of France is"], SamplingParams(max_tokens=8))
    ...     print(outputs[0].outputs[0].text)

    One call runs at a time: a second one, from another thread or inside an open ``stream``, is
    refused. Results don't depend on what else is in the batch but for rounding (int8: not at all).
    """

    def __init__(
        self,
        bundle: EngineBundle,
        backend: EngineBackend,
        *,
        schedule: str | ExitSchedule | None = None,
        max_batch_size: int = 8,
        kv_memory: int | None = None,
        raw_prompts: bool = False,
    ) -> None:
        if max_batch_size < 1:
            raise UsageError("max_batch_size", f"is {max_batch_size}; allowed: 1 or more")
        if kv_memory is not None and kv_memory < 1:
            raise UsageError("kv_memory", f"is {kv_memory}; allowed: 1 byte or more, or None")
        self.bundle = bundle
        self.model = bundle.manifest.model
        self.bundle_schedule = ExitSchedule.from_document(bundle.schedule_document)
        self._default_schedule = schedule
        self.resolve_schedule(schedule, max_tokens=1)
        tokenizer = bundle.manifest.tokenizer
        template = None if raw_prompts else bundle.manifest.prompt_template
        self.tokenizer = Tokenizer.load(bundle.file(tokenizer), template) if tokenizer else None
        self._layout = KVLayout.of(bundle.manifest.layers[0].tensor(TensorRole.PAST_KEY))
        self._backend = backend
        limits = BatchLimits.of(
            bundle.manifest,
            max_batch_size=max_batch_size,
            kv_bytes=kv_memory or 0,
            on_device=backend.device is not None,
        )
        self._stitcher: Stitcher | None = load_stitcher(
            bundle, backend, max_batch_size, limits.padded_rows
        )
        # What is free is known once the engines are loaded.
        self._limits = replace(limits, kv_bytes=kv_memory or backend.memory.available_bytes())
        self._pool = BufferPool(
            backend.memory, self._limits.kv_bytes, keeps_idle=backend.device is not None
        )
        self._planned_bytes = 0
        self._running = Lock()

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        schedule: str | ExitSchedule | None = None,
        device: str | None = None,
        threads: int | None = None,
        max_batch_size: int = 8,
        kv_memory: int | None = None,
        raw_prompts: bool = False,
        verify: Literal["graphs", "full"] = "graphs",
    ) -> Generator:
        """Open a bundle directory.

        ``schedule``: default of all calls, an ExitSchedule or its text (``2x``, ``full``, …);
        None is the bundle's own. ``device``: ``cpu``, ``cuda``, ``cuda:1`` or ``rehearsal``, None
        for what the bundle's target runs on (``onnxruntime``: the CPU). ``threads``: of each
        engine's pool on a CPU, where the process has not called ``use_shared_thread_pool``.
        ``kv_memory``: bytes for KV caches, None for half of the machine's memory, or four fifths
        of what engines leave free on a GPU. ``raw_prompts``: text prompts stand alone, although
        the model was tuned with a ``prompt_template``. ``verify="full"`` hashes the weights too.

        Raises BundleError, EnvironmentMismatchError, UsageError or ScheduleError.
        """
        bundle = EngineBundle.open(path, verify=verify)
        backend = open_backend(bundle.manifest.target, device=device, threads=threads)
        return cls(
            bundle,
            backend,
            schedule=schedule,
            max_batch_size=max_batch_size,
            kv_memory=kv_memory,
            raw_prompts=raw_prompts,
        )

    def __enter__(self) -> Generator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free engines and caches; later calls raise ClosedError. Idempotent."""
        if self._stitcher is not None:
            self._stitcher.close()
            self._stitcher = None
            self._pool.trim()
            self._backend.close()

    @property
    def device(self) -> Device | None:
        """The device that engines run on; None for the CPU."""
        return self._backend.device

    @property
    def prompt_template(self) -> str | None:
        """What text prompts are put into, e.g. ``"{prompt}\\nTL;DR:"``; None: they stand alone.

        The bundle's, which is that of the model's tuning, unless ``raw_prompts`` was given.
        """
        return None if self.tokenizer is None else self.tokenizer.prompt_template

    def warmup(
        self,
        batch_sizes: Sequence[int] = (1,),
        *,
        prompt_length: int = 1,
        max_tokens: int = 16,
        schedule: str | ExitSchedule | None = None,
    ) -> None:
        """Run calls of these sizes, so that later ones find memory, kernels and graphs ready.

        On a device each layer plan is captured as a graph, which later calls replay if their
        caches lie at the same addresses: with TensorRT, calls of as many rows in the same KV
        bucket; else, calls of these very sizes. Raises what ``generate`` raises.
        """
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        for batch_size in batch_sizes:
            self.generate([[0] * prompt_length] * batch_size, params, schedule=schedule)

    def trim(self) -> None:
        """Free the KV memory that is kept for later calls."""
        self._pool.trim()

    @property
    def kv_memory(self) -> KVMemory:
        """KV-cache memory of the last call: planned against actual."""
        return KVMemory(
            limit=self._limits.kv_bytes,
            planned=self._planned_bytes,
            peak=self._pool.peak_bytes,
            held=self._pool.idle_bytes,
        )

    def resolve_schedule(
        self, schedule: str | ExitSchedule | None, *, max_tokens: int
    ) -> ExitSchedule:
        """Return the schedule that a call with these arguments runs.

        ``max_tokens``: the call's largest, the horizon of a preset that names none where the
        bundle's own schedule has none to lend. Raises ScheduleError for one of another depth.
        """
        wanted = schedule if schedule is not None else self._default_schedule
        if wanted is None:
            wanted = self.bundle_schedule
        if isinstance(wanted, str):
            horizon = default_horizon(self.bundle_schedule, max_tokens)
            wanted = parse_schedule(wanted, num_layers=self.model.num_layers, horizon=horizon)
        if wanted.num_layers != self.model.num_layers:
            raise ScheduleError(
                "schedule",
                f"is for {wanted.num_layers} layers; the bundle has {self.model.num_layers}",
            )
        return wanted

    def generate(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | Iterable[SamplingParams] | None = None,
        *,
        schedule: str | ExitSchedule | None = None,
        cancelled: Callable[[], bool] = _never,
        on_progress: Callable[[Sequence[StreamDelta]], None] | None = None,
    ) -> list[RequestOutput]:
        """Continue each prompt and return results in input order.

        A prompt is a text, token ids (an array or tensor of them, too) or one of vLLM's mappings,
        ``{"prompt": text}`` or ``{"prompt_token_ids": ids}``. A text stands in ``prompt_template``,
        token ids are read as they are; the results have both, ``prompt`` as it was given and
        ``prompt_token_ids`` as they were read.

        ``sampling_params``: one for all prompts, or one each. ``cancelled`` is asked between
        steps; once true, what is unfinished ends with finish_reason "abort". ``on_progress``
        gets the deltas of each step.

        Raises UsageError, ScheduleError or CapacityError before any work.
        """
        requests = self.make_requests(prompts, sampling_params)
        return self.generate_requests(
            requests, schedule=schedule, cancelled=cancelled, on_progress=on_progress
        )

    def make_requests(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | Iterable[SamplingParams] | None = None,
    ) -> list[Request]:
        """Tokenize and check what ``generate`` takes, and run nothing."""
        return make_requests(prompts, sampling_params, self.model, self.tokenizer)

    def generate_requests(
        self,
        requests: Sequence[Request],
        *,
        schedule: str | ExitSchedule | None = None,
        cancelled: Callable[[], bool] = _never,
        on_progress: Callable[[Sequence[StreamDelta]], None] | None = None,
    ) -> list[RequestOutput]:
        """``generate`` of requests that were made before, each with an ``index`` of its own."""
        outputs: dict[tuple[int, int], CompletionOutput] = {}
        for deltas, finished in self._run(requests, schedule, cancelled):
            outputs |= {(row.request_index, row.output_index): row.output() for row in finished}
            if on_progress is not None:
                on_progress(deltas)
        return [
            RequestOutput(
                request_id=str(request.index),
                prompt=request.prompt,
                prompt_token_ids=request.prompt_token_ids,
                outputs=tuple(outputs[request.index, i] for i in range(request.params.n)),
                finished=True,
            )
            for request in requests
        ]

    def stream(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | Iterable[SamplingParams] | None = None,
        *,
        schedule: str | ExitSchedule | None = None,
        cancelled: Callable[[], bool] = _never,
    ) -> Iterator[StreamDelta]:
        """Like ``generate``, yielding each token as it comes, text cut at whole characters.

        Arguments are checked at the call, not at the first delta. Closing the iterator stops
        the work.
        """
        requests = self.make_requests(prompts, sampling_params)
        return self.stream_requests(requests, schedule=schedule, cancelled=cancelled)

    def stream_requests(
        self,
        requests: Sequence[Request],
        *,
        schedule: str | ExitSchedule | None = None,
        cancelled: Callable[[], bool] = _never,
    ) -> Iterator[StreamDelta]:
        """``stream`` of requests that were made before, each with an ``index`` of its own."""
        steps = self._run(requests, schedule, cancelled)
        return (delta for deltas, _ in steps for delta in deltas)

    def score(
        self,
        prompts: Prompts,
        continuations: Prompts,
        *,
        schedule: str | ExitSchedule | None = None,
    ) -> list[ScoreOutput]:
        """Log-probabilities of given continuations, each at the depth that generating it has.

        Equal to feeding the tokens one by one, in one pass: each layer runs on the prefix of
        tokens that are active in it.
        """
        requests = make_score_requests(prompts, continuations, self.model, self.tokenizer)
        longest = max((len(request.token_ids) for request in requests), default=1)
        resolved = self.resolve_schedule(schedule, max_tokens=longest)
        with self._exclusive() as stitcher:
            scorer = Scorer(stitcher, self._pool, self._layout, resolved, self._limits)
            self._planned_bytes = scorer.check(requests)
            return [scorer.score(request) for request in requests]

    def _run(
        self,
        requests: Sequence[Request],
        schedule: str | ExitSchedule | None,
        cancelled: Callable[[], bool],
    ) -> Iterator[tuple[list[StreamDelta], list[RunningSequence]]]:
        """Plan at once; yield each step's deltas and the sequences that it finished."""
        call_start = perf_counter()
        longest = max((request.max_tokens for request in requests), default=1)
        resolved = self.resolve_schedule(schedule, max_tokens=longest)
        batches = plan_batches(requests, resolved, self._layout, self._limits)
        self._require_open()
        return self._run_batches(batches, resolved, cancelled, call_start)

    def _run_batches(
        self,
        batches: Sequence[PlannedBatch],
        schedule: ExitSchedule,
        cancelled: Callable[[], bool],
        call_start: float,
    ) -> Iterator[tuple[list[StreamDelta], list[RunningSequence]]]:
        with self._exclusive() as stitcher:
            self._planned_bytes = max((batch.kv_plan.nbytes for batch in batches), default=0)
            for planned in batches:
                running = {
                    (row.request.index, row.output_index): RunningSequence(
                        row, self.model, self.tokenizer, call_start
                    )
                    for row in planned.rows
                }
                if cancelled():
                    yield [row.abort() for row in running.values()], list(running.values())
                    continue
                with KVCache(self._pool, planned.kv_plan) as cache:
                    rows = list(running.values())
                    batch = Batch(stitcher, cache, schedule, rows, self._limits)
                    with closing(batch.run(cancelled)) as steps:
                        for deltas in steps:
                            yield deltas, _finished(deltas, running)

    def _require_open(self) -> Stitcher:
        if self._stitcher is None:
            raise ClosedError("Generator", "is closed; open the bundle again")
        return self._stitcher

    @contextmanager
    def _exclusive(self) -> Iterator[Stitcher]:
        """Hold the engines for one call."""
        stitcher = self._require_open()
        if not self._running.acquire(blocking=False):
            raise SkipDecError(
                "Generator",
                "is busy: another thread is generating, or a stream is still open; wait, close "
                "the stream, or open a second generator",
            )
        try:
            self._pool.reset_peak()
            yield stitcher
        finally:
            self._running.release()


def _finished(
    deltas: Sequence[StreamDelta], running: Mapping[tuple[int, int], RunningSequence]
) -> list[RunningSequence]:
    """Return the sequences whose last delta is among ``deltas``."""
    return [
        running[delta.request_index, delta.index]
        for delta in deltas
        if delta.finish_reason is not None
    ]
