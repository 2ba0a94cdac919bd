"""Generator: text from a bundle, at any exit schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import cast

from ..engines.backends.device import Device
from ..engines.backends.session import EngineBackend, open_backend
from ..engines.bundle import EngineBundle, Verify, WeightsPlace
from ..engines.bundle.contract import check_contract
from ..engines.kernels.library import kernels_in_use
from .kv.pool import KVMemory
from .kv.prefix_sharing import PrefixSharing
from .requests.prompts import Prompts
from .requests.request import Request, make_requests
from .requests.runner import BatchRunner, GeneratorConfig
from .requests.scoring import make_score_requests
from .requests.step import gather_outputs
from .schedule import ExitSchedule
from .schedule.resolved import bundle_schedule
from .schedule.resolver import ScheduleResolver
from .schedule.tuning import UntunedWarning
from .scheduling.engine import Engine
from .scheduling.parts import EngineConfig
from .scheduling.source import EngineSource
from .tokens.outputs import RequestOutput, ScoreOutput, StreamDelta
from .tokens.sampling import SamplingParams
from .tokens.tokenizer import Tokenizer


def _never() -> bool:
    return False


class Generator:
    """Loads a bundle's engines once and generates with any schedule that fits its depth.

    >>> with Generator.open("opt-1.3b", schedule="2x") as generator:
    ...     outputs = generator.generate(["The capital of France is"], SamplingParams(max_tokens=8))
    ...     print(outputs[0].outputs[0].text)

    Any thread may call. One call runs at a time, and those of other threads wait for it in order of
    arrival, for an open ``stream`` until its end; a second call within a thread's own stream is
    refused. An `engine` runs the requests of many clients together.
    Results don't depend on what else is in the batch but for rounding (int8: not at all).
    Only the process that opened it can use it: a forked child opens one of its own.

    ``kernels`` names what runs its engines, e.g. ``skipdec avx512vnni`` or ``onnxruntime``.
    """

    def __init__(
        self,
        bundle: EngineBundle,
        backend: EngineBackend,
        *,
        schedule: str | ExitSchedule | None = None,
        max_batch_size: int = 8,
        kv_memory: int | str | None = None,
        kv_shares: int = 1,
        raw_prompts: bool = False,
    ) -> None:
        """See `open`. ``backend`` is the generator's from here on: closed with it, or if this
        fails. ``kv_shares``: of how many processes this is one, each of which takes an equal part
        of what one alone would take where no ``kv_memory`` is given.
        """
        with ExitStack() as on_failure:
            on_failure.callback(backend.close)
            check_contract(bundle.manifest)
            self.bundle = bundle
            self.bundle_schedule = bundle_schedule(bundle)
            self._untuned = UntunedWarning(bundle.manifest, self.bundle_schedule)
            self.model = bundle.manifest.model
            self.kernels = kernels_in_use(bundle.manifest)
            self._schedules = ScheduleResolver(
                self.model.num_layers, self.bundle_schedule, schedule, self.model.max_seq_len
            )
            self._schedules.resolve(None, 1)
            config = GeneratorConfig(
                max_batch_size=max_batch_size,
                kv_memory=kv_memory,  # type: ignore[arg-type]  # a text is read
                kv_shares=kv_shares,
            )
            template = None if raw_prompts else bundle.manifest.prompt_template
            self.tokenizer = Tokenizer.of(bundle, template)
            self._runner = BatchRunner(bundle, backend, config, self.tokenizer)
            self._engines = self._runner.engines
            self._source = EngineSource(self._runner, self.model, self.tokenizer, self._schedules)
            on_failure.pop_all()

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        schedule: str | ExitSchedule | None = None,
        device: str | None = None,
        threads: int | None = None,
        max_batch_size: int = 8,
        kv_memory: int | str | None = None,
        raw_prompts: bool = False,
        weights: WeightsPlace = "mapped",
        verify: Verify = "full",
    ) -> Generator:
        """Open a bundle directory.

        ``schedule``: default of all calls, an ExitSchedule or its text (``2x``, ``full``, …);
        None is the bundle's own. ``device``: ``cpu``, ``cuda``, ``cuda:1`` or ``rehearsal``, None
        for what the bundle's target runs on (``onnxruntime``: the CPU). ``threads``: of each
        engine's pool on a CPU, where the process has not called ``use_shared_thread_pool``; at
        most the processors that this process may use.
        ``kv_memory``: for KV caches, bytes or a text such as ``2GiB``; None for half of the memory
        that this process may use, or four fifths of what engines leave free on a GPU.
        ``raw_prompts``: text prompts stand alone, although the model was tuned with a
        ``prompt_template``. ``weights``, of skipdec's kernels on a CPU: "mapped" files, which open
        at once and which processes share, or "copied" to huge pages of this process's memory, for
        steps some per cent faster. ``verify``: "full" hashes weights while they are loaded,
        "graphs" everything else only.

        Raises BundleError, EnvironmentMismatchError, UsageError or ScheduleError.
        """

        def load(bundle: EngineBundle) -> Generator:
            backend = open_backend(
                bundle.manifest.target, device=device, threads=threads, weights=weights
            )
            return cls(
                bundle,
                backend,
                schedule=schedule,
                max_batch_size=max_batch_size,
                kv_memory=kv_memory,
                raw_prompts=raw_prompts,
            )

        return EngineBundle.load(path, load, verify=verify)

    def __repr__(self) -> str:
        return f"Generator({self.bundle!r})"

    def __enter__(self) -> Generator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free engines and caches; later calls raise ClosedError. Idempotent, from any thread.

        A call that is going on is ended: close waits for the step that runs, if one does, then
        frees; the call, or a stream that is open, raises ClosedError at its next step. Within a
        step (in a signal handler) it can't wait, so the step's end frees. In a forked child
        nothing is done: all of it is the parent's.
        """
        self._engines.close()

    @property
    def device(self) -> Device | None:
        """The device that engines run on; None for the CPU."""
        return self._engines.device

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
        caches lie at the same addresses: calls of as many rows in the same KV bucket (TensorRT), or
        of like lengths. An engine's caches are others. Raises what ``generate`` raises.
        """
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        for batch_size in batch_sizes:
            self.generate([[0] * prompt_length] * batch_size, params, schedule=schedule)

    def trim(self) -> None:
        """Free the KV memory that is kept for later calls."""
        self._engines.trim()

    @property
    def schedules(self) -> ScheduleResolver:
        """What resolves the schedules of its calls."""
        return self._schedules

    @property
    def kv_memory(self) -> KVMemory:
        """KV-cache memory of the last call: planned against actual."""
        return self._engines.kv_memory

    def resolve_schedule(
        self, schedule: str | ExitSchedule | None, *, max_tokens: int
    ) -> ExitSchedule:
        """Return the schedule that a request of a call with ``schedule`` runs.

        ``max_tokens``: the request's own (of a score, the continuation's tokens), the horizon of a
        preset that names none where the bundle's own schedule has none to lend. Requests of
        different horizons run in different batches; ``2x:horizon=64`` lets them share one.

        Raises ScheduleError for a text that is none, and for a schedule of another depth.
        """
        return self._schedules.resolve(schedule, max_tokens)

    def resolve_schedules(
        self, requests: Sequence[Request], schedule: str | ExitSchedule | None = None
    ) -> list[ExitSchedule]:
        """Return what each request of a call with ``schedule`` runs: `resolve_schedule` for all."""
        return self._schedules.resolve_all(schedule, [request.max_tokens for request in requests])

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
        schedules = self.resolve_schedules(requests, schedule)
        self._untuned.log(schedules)
        return self.generate_requests(
            requests, schedules, cancelled=cancelled, on_progress=on_progress
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
        schedules: Sequence[ExitSchedule],
        *,
        cancelled: Callable[[], bool] = _never,
        on_progress: Callable[[Sequence[StreamDelta]], None] | None = None,
    ) -> list[RequestOutput]:
        """``generate`` of requests that were made before, each with an ``index`` of its own.

        ``schedules``: one a request, see `resolve_schedules`.
        """
        steps = self._source.steps(requests, schedules, cancelled)
        return gather_outputs(requests, schedules, steps, on_progress)

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
        schedules = self.resolve_schedules(requests, schedule)
        self._untuned.log(schedules)
        return self.stream_requests(requests, schedules, cancelled=cancelled)

    def stream_requests(
        self,
        requests: Sequence[Request],
        schedules: Sequence[ExitSchedule],
        *,
        cancelled: Callable[[], bool] = _never,
    ) -> Iterator[StreamDelta]:
        """``stream`` of requests that were made before, as `generate_requests` takes them."""
        steps = self._source.steps(requests, schedules, cancelled)
        return (delta for step in steps for delta in step.deltas)

    @contextmanager
    def engine(
        self,
        *,
        max_prefill_tokens: int | None = None,
        max_model_len: int | None = None,
        admission: str | None = None,
        prefix_cache: bool | PrefixSharing = "shared",
    ) -> Iterator[Engine]:
        """Hold this generator for requests that come at any time and run together; see `Engine`.

        ``max_prefill_tokens``: of one call for prompts, None for 2,048; a smaller number lets the
        texts that run go on sooner. ``max_model_len``: positions of a request, prompt and text,
        None for as many as the bundle holds; on a device each slot has memory for as many, and of
        TensorRT's engines those of the smallest KV bucket that holds them run. ``admission``:
        ``fcfs``, the default on a CPU, or ``gang:min_free=2,hold_ms=8``, that on a device. Up to
        ``max_batch_size`` rows run at once. ``prefix_cache``: on a CPU, keep what prompts'
        beginnings make, in up to a quarter of the KV memory, so that prompts that begin like one
        before run the rest only; the texts are the same. "shared": whoever sent that one; "client":
        only if it was of the same ``client`` (`Engine.add`), who else could tell from the time of a
        first token what others sent; "off": keep nothing. True and False are "shared" and "off".

        Other calls are refused while it is open.

        Raises UsageError for a value that is not allowed, SkipDecError inside
        another engine or this thread's open stream.
        """
        config = EngineConfig(admission=admission, prefixes=cast(PrefixSharing, prefix_cache))
        if max_prefill_tokens is not None:
            config = config.updated(max_prefill_tokens=max_prefill_tokens)
        with self._source.engine(config, max_model_len=max_model_len) as engine:
            yield engine

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
        lengths = [len(request.token_ids) for request in requests]
        schedules = self._schedules.resolve_all(schedule, lengths)
        return self._runner.score(requests, schedules)


OpenGenerator = Callable[[Path], Generator]  # how a long call opens a bundle, with its options
