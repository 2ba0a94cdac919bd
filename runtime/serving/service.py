"""EngineService: the interface of a bundle's engine, in this process or in others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Future
from typing import TypedDict, Unpack

from ..requests.request import Prompt
from ..schedule import ExitSchedule
from ..scheduling.stats import EngineStats
from ..tokens.outputs import RequestOutput, ScoreOutput
from ..tokens.sampling import SamplingParams
from .open_request import OpenRequest, ServedRequest
from .outline import BundleOutline
from .scoring import ScoreFuture
from .stream import RequestStream


class RequestOptions(TypedDict, total=False):
    """Options of a request; see `EngineService.submit`."""

    schedule: str | ExitSchedule | None
    request_id: str | None
    deadline: float | None
    client: str


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
    ) -> RequestStream:
        """Queue a request and return its stream; call it from a running event loop.

        ``deadline``: seconds after which the request ends with finish_reason "abort" and
        stop_reason "deadline", whether it waits or runs. If the engine hangs or a step takes long,
        the request ends without the engine 0.2 s later, with the text so far.
        ``client``: any name of the caller. Clients take turns, one request each; all requests
        without a name belong to one client. A prefix cache may belong to one client.

        Raises UsageError, ScheduleError and CapacityError before the request is queued,
        OverloadedError if too many wait, and ClosedError while draining and once closed.
        """
        self.require_home()
        made, resolved = self.outline.prepare(prompt, params, schedule, client)
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

        The text is scored between two steps of running requests. Without a ``continuation``, the
        prompt's own tokens but the first are scored, at the depth at which a prompt is read.
        ``top_logprobs`` adds as many of the most probable tokens. ``followed_by``, of max_tokens 1,
        adds the next token as ``following``. Cancelling the call cancels the request.

        Raises as `submit`, TimeoutError if the deadline passed while the text waited, ClosedError
        if it was aborted, and SkipDecError if an engine fails.
        """
        self.require_home()
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

    @abstractmethod
    async def drain(self, timeout: float | None = None) -> bool:
        """Refuse new requests and wait for the open ones to end; False if the time ran out."""

    @abstractmethod
    def end_all(self, error: Exception) -> None:
        """End every open request with ``error`` at once, whatever its engine does; then close."""

    @abstractmethod
    def close(self) -> None:
        """Cancel everything and free all; idempotent, from any thread but the engine's.

        In a forked child nothing is done: all of it is the parent's.
        """


def seconds_until_room(stats: EngineStats) -> float:
    """Estimate when a place in the queue is free, from the mean time of past requests."""
    ended = stats.finished + stats.aborted
    busy = stats.prefill_seconds + stats.decode_seconds + stats.sampling_seconds
    busy += stats.scoring_seconds
    return max(1.0, busy / ended if ended else 1.0)
