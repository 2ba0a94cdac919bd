"""Generator: generates text with a bundle, at any exit schedule."""

from __future__ import annotations

import logging
from collections import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Unpack

from ..engines.backends.device import Device
from ..engines.backends.session import EngineBackend
from ..engines.bundle import EngineBundle
from ..engines.bundle.contract import check_contract
from ..engines.errors import UsageError, shown
from ..engines.kernels.library import kernels_in_use
from .drafting.memory import DraftMemory
from .kv.buffers import KVMemory
from .opening import OpenKeywords, OpenOptions
from .requests.request import Messages, Prompts, Request, chat_prompts, make_requests
from .requests.score_request import make_score_requests
from .schedule import ExitSchedule
from .schedule.bundle import bundle_schedule, untuned_warning
from .schedule.request_schedules import ScheduleResolver
from .scheduling.call import Call
from .scheduling.loaded_bundle import LoadedBundle, RunningBatchConfig
from .scheduling.running_batch import RunningBatch
from .scheduling.scoring import Scorer
from .tokens.chat import SpecialTokens
from .tokens.outputs import RequestOutput, ScoreOutput, StreamDelta
from .tokens.sampling import SamplingParams
from .tokens.tokenizer import Tokenizer

_LOG = logging.getLogger(__name__)


def _never() -> bool:
    return False


class Generator:
    """Loads a bundle's engines once and generates with any schedule that fits its depth.

    >>> with Generator.open("opt-1.3b", schedule="2x") as generator:
    ...     outputs = generator.generate(["The capital of France is"], SamplingParams(max_tokens=8))
    ...     print(outputs[0].outputs[0].text)

    Any thread may call it. One call runs at a time; calls of other threads wait in order of
    arrival, including for the end of an open ``stream``. A second call within a thread's own stream
    is refused. A `running_batch` runs the requests of many clients together. Results don't depend
    on what else is in the batch, except for rounding (with int8: not at all). Only the process that
    opened a generator can use it; a forked child must open its own.

    ``kernels`` names the kernels that run its engines, e.g. ``skipdec avx512vnni`` or
    ``onnxruntime``; ``schedules`` and ``drafts`` resolve the schedules and drafts of its calls.
    """

    def __init__(
        self,
        bundle: EngineBundle,
        backend: EngineBackend,
        options: OpenOptions | None = None,
        **changes: Unpack[OpenKeywords],
    ) -> None:
        """Load the engines of ``bundle`` with ``backend``; see `open`.

        The generator owns ``backend`` and closes it at its end, or if this fails. Options that
        choose and configure a backend have no effect here.
        """
        with ExitStack() as on_failure:
            on_failure.callback(backend.close)
            options = OpenOptions.of(options, **changes)
            check_contract(bundle.manifest)
            self.bundle = bundle
            self.bundle_schedule = bundle_schedule(bundle)
            self._has_warned = False
            self.model = bundle.manifest.model
            self.kernels = kernels_in_use(bundle.manifest)
            self.schedules = ScheduleResolver.of(self.model, self.bundle_schedule, options.schedule)
            template = None if options.raw_prompts else bundle.manifest.prompt_template
            self.tokenizer = Tokenizer.of(bundle, template)
            self._loaded = LoadedBundle.load(
                bundle, backend, options, self.tokenizer, self.schedules
            )
            self.drafts = self._loaded.drafts
            self._engines = self._loaded.engines
            on_failure.pop_all()

    @classmethod
    def open(
        cls,
        path: str | Path,
        options: OpenOptions | None = None,
        **changes: Unpack[OpenKeywords],
    ) -> Generator:
        """Open a bundle directory with ``options``; keyword arguments of their names override them.

        `OpenOptions` describes them, for example ``schedule``, ``threads`` and ``kv_memory``.
        Raises BundleError, EnvironmentMismatchError, UsageError or ScheduleError.
        """
        return cls._open(path, OpenOptions.of(options, **changes), shares_pool=False)

    @classmethod
    def open_with_shared_pool(cls, path: str | Path, options: OpenOptions) -> Generator:
        """Open a bundle for a program that owns its process: one thread pool runs all engines.

        Raises what `open` raises.
        """
        return cls._open(path, options, shares_pool=True)

    @classmethod
    def _open(cls, path: str | Path, options: OpenOptions, *, shares_pool: bool) -> Generator:
        def load(bundle: EngineBundle) -> Generator:
            backend = options.open_backend(bundle.manifest.target, shares_pool=shares_pool)
            return cls(bundle, backend, options)

        return EngineBundle.load(path, load, verify=options.verify)

    def __repr__(self) -> str:
        return f"Generator({self.bundle!r})"

    def __enter__(self) -> Generator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free engines and caches; later calls raise ClosedError. Idempotent, from any thread.

        It waits for a running step, then frees the memory; a running call or an open stream raises
        ClosedError at its next step. Within a step (in a signal handler) it cannot wait, so the
        memory is freed when the step ends. In a forked child it does nothing, because the memory
        belongs to the parent.
        """
        self._engines.close()
        if self.tokenizer is not None:
            self.tokenizer.close()

    @property
    def device(self) -> Device | None:
        """The device that the engines run on; None for the CPU."""
        return self._engines.device

    @property
    def prompt_template(self) -> str | None:
        """The template around text prompts, e.g. ``"{prompt}\\nTL;DR:"``, or None.

        It is the bundle's, with which the model was tuned, unless ``raw_prompts`` was given.
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
        """Run calls of these sizes, so that memory, kernels and graphs are ready for later ones.

        On a device each layer plan is captured as a graph, which later calls replay if their caches
        have the same addresses: calls with as many rows in the same KV bucket (TensorRT), or of
        similar lengths. Raises what ``generate`` raises.
        """
        params = SamplingParams.fixed(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        try:
            calls = [[[0] * prompt_length] * batch_size for batch_size in batch_sizes]
        except TypeError:
            given = f"has batch_sizes {shown(batch_sizes)} and prompt_length {shown(prompt_length)}"
            raise UsageError("warmup", f"{given}; allowed: integers, e.g. [1, 8] and 64") from None
        for prompts in calls:
            self.generate(prompts, params, schedule=schedule)

    def trim(self) -> None:
        """Free the KV memory kept for later calls."""
        self._engines.trim()

    @property
    def kv_memory(self) -> KVMemory:
        """The KV-cache memory of the last call: planned against actual."""
        return self._engines.kv_memory

    def resolve_schedule(
        self, schedule: str | ExitSchedule | None, *, max_tokens: int
    ) -> ExitSchedule:
        """Return the schedule that a request of a call with ``schedule`` runs.

        ``max_tokens`` is the request's own, or for a score the number of the continuation's tokens.
        It becomes the horizon of a preset that names none, if the bundle's own schedule has no
        horizon either. Raises ScheduleError for an invalid text or a schedule of another depth.
        """
        return self.schedules.resolve(schedule, max_tokens)

    def resolve_schedules(
        self, requests: Sequence[Request], schedule: str | ExitSchedule | None = None
    ) -> list[ExitSchedule]:
        """Return the schedule of each request of a call, as `resolve_schedule` does for one."""
        return self.schedules.resolve_all(schedule, [request.max_tokens for request in requests])

    def untuned_warning(self, schedules: Iterable[ExitSchedule]) -> str | None:
        """Return a warning if ``schedules`` skip layers of a model with no record of tuning."""
        return untuned_warning(self.bundle.manifest, self.bundle_schedule, schedules)

    def _warn_once(self, schedules: Iterable[ExitSchedule]) -> None:
        """Log `untuned_warning`, unless this generator has logged one."""
        if not self._has_warned and (warning := self.untuned_warning(schedules)) is not None:
            self._has_warned = True
            _LOG.warning(warning)

    def generate(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | Iterable[SamplingParams] | None = None,
        *,
        schedule: str | ExitSchedule | None = None,
        draft: str | None = None,
        cancelled: Callable[[], bool] = _never,
        on_progress: Callable[[Sequence[StreamDelta]], None] | None = None,
    ) -> list[RequestOutput]:
        """Continue each prompt and return results in input order.

        A prompt is a text, token ids (a sequence, array or tensor), one of vLLM's mappings,
        ``{"prompt": text}`` or ``{"prompt_token_ids": ids}``, or ``{"messages": messages}``, see
        `chat`. A text is put into ``prompt_template``; token ids are read as they are. The results
        have ``prompt`` as it was given and ``prompt_token_ids`` as they were read.

        ``sampling_params``: one for all prompts, or one for each. ``cancelled`` is called between
        steps; once it returns true, unfinished texts end with finish_reason "abort".
        ``on_progress`` receives the deltas of each step. ``draft`` overrides the drafts with which
        the generator was opened, for example ``"own"`` or ``"off"``; it changes no text.

        Raises UsageError, ScheduleError or CapacityError before any work begins.
        """
        requests = self.make_requests(prompts, sampling_params)
        schedules = self.resolve_schedules(requests, schedule)
        self._warn_once(schedules)
        return self.generate_requests(
            requests, schedules, draft=draft, cancelled=cancelled, on_progress=on_progress
        )

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Iterable[SamplingParams] | None = None,
        *,
        special_tokens: SpecialTokens = "escape",
        chat_template_kwargs: Mapping[str, Any] | None = None,
        continue_final_message: bool = False,
        schedule: str | ExitSchedule | None = None,
        draft: str | None = None,
        cancelled: Callable[[], bool] = _never,
        on_progress: Callable[[Sequence[StreamDelta]], None] | None = None,
    ) -> list[RequestOutput]:
        """Answer one chat, or each of several, rendered by the bundle's chat template.

        >>> generator.chat([{"role": "user", "content": "Hello"}], SamplingParams(max_tokens=64))

        ``special_tokens``: if a message spells one, it becomes ordinary text ("escape") or that
        token ("allow"). ``chat_template_kwargs``: variables of the template, for example
        ``{"enable_thinking": False}``. With ``continue_final_message`` the last message is the
        beginning of the answer. The results' ``prompt`` is the rendered text. Everything else is as
        in `generate`, which also takes ``{"messages": messages}`` as a prompt. Raises UsageError if
        the bundle has no template, and MissingExtraError without jinja2.
        """
        prompts = chat_prompts(
            messages,
            special_tokens=special_tokens,
            chat_template_kwargs=chat_template_kwargs,
            continue_final_message=continue_final_message,
        )
        return self.generate(
            prompts,
            sampling_params,
            schedule=schedule,
            draft=draft,
            cancelled=cancelled,
            on_progress=on_progress,
        )

    def fresh_draft_memory(self) -> DraftMemory:
        """Return a draft memory that has learned nothing yet, for `generate_requests`."""
        return self._loaded.draft_memory.fresh()

    def make_requests(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | Iterable[SamplingParams] | None = None,
    ) -> list[Request]:
        """Tokenize and check the arguments of ``generate`` without running anything."""
        return make_requests(prompts, sampling_params, self.model, self.tokenizer)

    def generate_requests(
        self,
        requests: Sequence[Request],
        schedules: Sequence[ExitSchedule],
        *,
        draft: str | None = None,
        draft_memory: DraftMemory | None = None,
        cancelled: Callable[[], bool] = _never,
        on_progress: Callable[[Sequence[StreamDelta]], None] | None = None,
    ) -> list[RequestOutput]:
        """Run requests from `make_requests`, each with an ``index`` of its own.

        ``schedules`` has one for each request, see `resolve_schedules`. ``draft_memory`` takes the
        place of the generator's own, e.g. to measure drafts that begin with nothing. Everything
        else is as in `generate`.
        """
        loaded = self._loaded.remembering(draft_memory)
        call = Call(
            loaded, requests, schedules, draft, cancelled=cancelled, on_progress=on_progress
        )
        return call.run()

    def stream(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | Iterable[SamplingParams] | None = None,
        *,
        schedule: str | ExitSchedule | None = None,
        draft: str | None = None,
        cancelled: Callable[[], bool] = _never,
    ) -> abc.Generator[StreamDelta]:
        """Yield tokens as they are generated, in deltas of whole characters; else as ``generate``.

        Arguments are checked at the call, not at the first delta. Closing the iterator stops the
        work.
        """
        requests = self.make_requests(prompts, sampling_params)
        schedules = self.resolve_schedules(requests, schedule)
        self._warn_once(schedules)
        return self.stream_requests(requests, schedules, draft=draft, cancelled=cancelled)

    def stream_requests(
        self,
        requests: Sequence[Request],
        schedules: Sequence[ExitSchedule],
        *,
        draft: str | None = None,
        cancelled: Callable[[], bool] = _never,
    ) -> abc.Generator[StreamDelta]:
        """Stream requests from `make_requests`; the arguments are those of `generate_requests`."""
        steps = Call(self._loaded, requests, schedules, draft, cancelled=cancelled).steps()
        return (delta for deltas, _ in steps for delta in deltas)

    @contextmanager
    def running_batch(
        self,
        options: OpenOptions | None = None,
        *,
        draft_memory: DraftMemory | None = None,
        **changes: Unpack[OpenKeywords],
    ) -> Iterator[RunningBatch]:
        """Hold this generator for requests that arrive at any time and run together.

        Up to ``max_batch_size`` rows run at once; see `RunningBatch`. Keyword arguments override
        ``options``, of which ``draft`` and those from ``max_prefill_tokens`` on have an effect.
        ``max_prefill_tokens`` is 2,048 by default, on a GPU up to 8,192 if it has memory for their
        activations. ``max_model_len`` is by default what the bundle holds; TensorRT runs the
        engines of the smallest KV bucket that holds so many positions. ``admission`` is ``fcfs``,
        the default on a CPU, or ``gang:min_free=2,hold_ms=8``, the default on a device. With
        ``prefix_cache``, a prompt on a CPU that begins like an earlier one runs only its rest, and
        its text stays the same. ``draft`` overrides the drafts with which the generator was
        opened. ``draft_memory`` is as in `generate_requests`.

        Other calls are refused while the batch is open. Raises UsageError for an invalid value, and
        SkipDecError inside another running batch or this thread's open stream.
        """
        options = OpenOptions.of(options, **changes)
        config = RunningBatchConfig(
            admission=options.admission,
            prefixes=options.prefix_cache,
            draft=self.drafts.resolve(options.draft),
        )
        loaded = self._loaded.remembering(draft_memory)
        slots = loaded.batch_slots(options, config)
        with self._engines.hold(slots, lasts=True):
            yield RunningBatch(loaded, slots, config)

    def score(
        self,
        prompts: Prompts,
        continuations: Prompts,
        *,
        schedule: str | ExitSchedule | None = None,
    ) -> list[ScoreOutput]:
        """Return log-probabilities of given continuations, each at the depth of generating it.

        They equal those of feeding the tokens one by one but take a single pass: each layer runs on
        the prefix of tokens that are active in it.
        """
        requests = make_score_requests(prompts, continuations, self.model, self.tokenizer)
        schedules = self.schedules.resolve_all(schedule, [len(one.token_ids) for one in requests])
        return Scorer(self._loaded).score_all(requests, schedules)


OpenGenerator = Callable[[Path], Generator]  # opens a bundle with the options of a long call
