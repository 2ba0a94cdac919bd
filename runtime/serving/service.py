"""EngineService, the interface of a bundle's engine, and the outline of the bundle behind it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Self, TypedDict, Unpack

from ...engines.bundle import EngineBundle
from ...engines.bundle.contract import check_contract
from ...engines.kernels.library import kernels_in_use
from ...engines.manifest import ModelSpec
from ..drafting.bundle import draft_resolver
from ..drafting.config import DraftConfig
from ..drafting.resolver import wants_drafts
from ..generator import Generator
from ..opening import OpenOptions
from ..requests.request import Prompt, Request, make_request
from ..requests.score_request import ScoreRequest, make_score_request
from ..schedule import ExitSchedule
from ..schedule.bundle import bundle_schedule
from ..schedule.request_schedules import ScheduleResolver
from ..scheduling.stats import EngineStats
from ..tokens.outputs import RequestOutput, ScoreOutput
from ..tokens.sampling import SamplingParams
from ..tokens.tokenizer import Tokenizer
from .stream import OpenRequest, RequestStream, ScoreFuture, ServedRequest


@dataclass(frozen=True)
class BundleOutline:
    """A bundle's model, tokenizer and schedules: enough to read requests and to check them."""

    digest: str  # of the bundle's manifest
    model: ModelSpec
    tokenizer: Tokenizer | None
    kernels: str  # what runs it here, e.g. ``skipdec avx512vnni``
    schedules: ScheduleResolver
    draft: DraftConfig | None  # of all requests that do not switch drafts off
    max_model_len: int | None = None  # positions of a request, at most; None: as the model has

    @classmethod
    def of(cls, bundle: EngineBundle, options: OpenOptions) -> Self:
        """Read ``bundle``, which is opened with ``options``.

        Raises BundleError, ScheduleError for a schedule that does not fit it, and UsageError for
        drafts that do not.
        """
        manifest, model = bundle.manifest, bundle.manifest.model
        check_contract(manifest)
        own = bundle_schedule(bundle)
        schedules = ScheduleResolver(model.num_layers, own, options.schedule, model.max_seq_len)
        schedules.resolve(None, 1)
        drafts = draft_resolver(bundle, own, device=options.device, default=options.draft)
        draft = drafts.resolve()
        template = None if options.raw_prompts else manifest.prompt_template
        tokenizer = Tokenizer.of(bundle, template)
        if tokenizer is not None:
            tokenizer.warm_up()
        return cls(
            manifest.digest,
            model,
            tokenizer,
            kernels_in_use(manifest),
            schedules,
            draft,
            options.max_model_len,
        )

    @classmethod
    def of_generator(
        cls, generator: Generator, draft: str | None = None, max_model_len: int | None = None
    ) -> Self:
        """Describe the bundle that ``generator`` runs with ``draft``, by default its own.

        Raises UsageError for drafts that do not fit the bundle.
        """
        return cls(
            generator.bundle.manifest.digest,
            generator.model,
            generator.tokenizer,
            generator.kernels,
            generator.schedules,
            generator.drafts.resolve(draft),
            max_model_len,
        )

    def close(self) -> None:
        """End the processes that render chats."""
        if self.tokenizer is not None:
            self.tokenizer.close()

    def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams | None,
        schedule: str | ExitSchedule | None,
        client: str = "",
        subject: str = "prompt",
        draft: str | None = None,
    ) -> tuple[Request, ExitSchedule]:
        """Make and check a request. Raises UsageError, which names ``subject``, and ScheduleError.

        ``subject``: the prompt, where a client sent several. ``draft``: as in `wants_drafts`.
        """
        drafts = wants_drafts(draft)
        request = make_request(
            0,
            prompt,
            params or SamplingParams(),
            self.model,
            self.tokenizer,
            subject,
            client,
            self.max_model_len,
        )
        schedule = self.schedules.resolve(schedule, request.max_tokens)
        return replace(request, drafts=drafts), schedule

    def prepare_score(
        self,
        prompt: Prompt,
        continuation: Prompt | None,
        schedule: str | ExitSchedule | None,
        *,
        top_logprobs: int | None = None,
        followed_by: SamplingParams | None = None,
        client: str = "",
        subject: str = "prompt",
    ) -> tuple[ScoreRequest, ExitSchedule]:
        """Make and check a text to score; raises as `prepare`."""
        request = make_score_request(
            prompt,
            continuation,
            self.model,
            self.tokenizer,
            top_logprobs=top_logprobs,
            followed_by=followed_by,
            client=client,
            subject=subject,
        )
        max_tokens = 1 if continuation is None else len(request.token_ids)
        return request, self.schedules.resolve(schedule, max_tokens)


class RequestOptions(TypedDict, total=False):
    """Options of a request; see `EngineService.submit`."""

    schedule: str | ExitSchedule | None
    request_id: str | None
    deadline: float | None
    client: str
    draft: str | None


class EngineService(ABC):
    """A bundle that many asyncio clients generate with at once.

    `AsyncEngine` runs it in a thread, `ProcessEngine` in a process, `Replicas` in several. Only the
    process that opened it can use it: in a forked child its methods raise SkipDecError.
    """

    @property
    @abstractmethod
    def outline(self) -> BundleOutline:
        """The bundle's model, tokenizer and schedules."""

    @property
    @abstractmethod
    def refusal(self) -> str | None:
        """The reason why new requests are refused (draining, closed, failed), or None.

        A message puts the name of the engine before it.
        """

    @property
    @abstractmethod
    def unready(self) -> str | None:
        """The reason why new requests should go elsewhere: `refusal`, or a restart to wait for."""

    @property
    @abstractmethod
    def failure(self) -> Future[str]:
        """Done once it has failed for good, with the reason; from any thread."""

    @property
    @abstractmethod
    def seconds_in_step(self) -> float:
        """Seconds that the current step has taken so far; 0.0 between steps."""

    @abstractmethod
    def enter(self, opened: OpenRequest) -> None:
        """Queue a prepared request; raises as `submit`, but for its own checks of the prompt."""

    @abstractmethod
    def require_home(self) -> None:
        """Raise SkipDecError in a forked child, where no thread would answer."""

    def start(self, asked: ServedRequest) -> RequestStream:
        """Queue a request that `BundleOutline.prepare` made and return its stream."""
        stream = RequestStream(asked)
        self.enter(stream)
        return stream

    async def wait_for_scores(self, asked: ServedRequest) -> ScoreOutput:
        """Queue a text that `BundleOutline.prepare_score` made and return its scores."""
        future = ScoreFuture(asked)
        self.enter(future)
        return await future.output()

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        schedule: str | ExitSchedule | None = None,
        request_id: str | None = None,
        deadline: float | None = None,
        client: str = "",
        draft: str | None = None,
    ) -> RequestStream:
        """Queue a request and return its stream; call it from a running event loop.

        A chat is rendered before it returns. A server that renders templates of others calls
        ``outline.prepare`` in a thread, and then `start`.

        ``deadline``: seconds after which the request ends with finish_reason "abort" and
        stop_reason "deadline", whether it waits or runs. If the engine hangs or a step takes long,
        the request ends without the engine 0.2 s later, with the text so far.
        ``client``: any name of the caller. Clients take turns, one request each; all requests
        without a name belong to one client. A prefix cache may belong to one client, and so may
        n-grams for drafts.
        ``draft``: "off" runs this request without drafts, where the engine drafts; its text stays
        the same.

        Raises UsageError, ScheduleError and CapacityError before the request is queued,
        OverloadedError if too many wait, and ClosedError while draining and once closed.
        """
        self.require_home()
        made, resolved = self.outline.prepare(prompt, params, schedule, client, draft=draft)
        return self.start(ServedRequest.named(made, resolved, request_id, deadline))

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        **options: Unpack[RequestOptions],
    ) -> RequestOutput:
        """Return the whole result of a request; takes the options of `submit`.

        Cancelling the call cancels the request.
        """
        async with self.submit(prompt, params, **options) as stream:
            return await stream.output()

    async def score(
        self,
        prompt: Prompt,
        continuation: Prompt | None = None,
        *,
        top_logprobs: int | None = None,
        followed_by: SamplingParams | None = None,
        **options: Unpack[RequestOptions],
    ) -> ScoreOutput:
        """Return log-probabilities of given tokens, as `Generator.score`; options as in `submit`.

        The text is scored between two steps of running requests; ``draft`` changes nothing here.
        Without a ``continuation``, the prompt's own tokens but the first are scored, at the depth
        at which a prompt is read. ``top_logprobs`` adds as many of the most probable tokens.
        ``followed_by``, of max_tokens 1, adds the next token as ``following``. Cancelling the call
        cancels the request.

        Raises as `submit`, TimeoutError if the deadline passed while the text waited, ClosedError
        if it was aborted, and SkipDecError if an engine fails.
        """
        self.require_home()
        wants_drafts(options.get("draft"))
        made, resolved = self.outline.prepare_score(
            prompt,
            continuation,
            options.get("schedule"),
            top_logprobs=top_logprobs,
            followed_by=followed_by,
            client=options.get("client", ""),
        )
        asked = ServedRequest.named(
            made, resolved, options.get("request_id"), options.get("deadline")
        )
        return await self.wait_for_scores(asked)

    @abstractmethod
    async def abort(self, request_id: str) -> None:
        """End a request, if it has not ended; unknown ones are no error."""

    @abstractmethod
    def stats(self) -> EngineStats:
        """Return the number of running and waiting requests, and the totals so far."""

    def seconds_until_room(self) -> float:
        """Estimate when a place in the queue is free, from the mean time of past requests."""
        stats = self.stats()
        busy = stats.prefill_seconds + stats.decode_seconds
        busy += stats.sampling_seconds + stats.scoring_seconds
        ended = stats.finished + stats.aborted
        return max(1.0, busy / ended) if ended else 1.0

    @abstractmethod
    async def drain(self, timeout: float | None = None) -> bool:
        """Refuse new requests and wait for the open ones to end; False if the time ran out.

        Raises UsageError for a ``timeout`` of NaN.
        """

    @abstractmethod
    def end_all(self, error: Exception) -> None:
        """End every open request with ``error`` at once, whatever its engine does; then close."""

    @abstractmethod
    def close(self) -> None:
        """Cancel everything and free all; idempotent, from any thread but the engine's.

        In a forked child nothing is done: all of it is the parent's.
        """
