"""EngineService: the interface of a bundle's engine for many asyncio clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypedDict, Unpack

from ..drafting.resolver import wants_drafts
from ..requests.request import Prompt
from ..schedule import ExitSchedule
from ..scheduling.stats import EngineStats
from ..tokens.outputs import RequestOutput, ScoreOutput
from ..tokens.sampling import SamplingParams
from .inputs import InputProcessor
from .messages import ServedRequest, require_time
from .queue import RequestQueue, Suspects
from .stream import PendingRequest, RequestStream, ScoreFuture


class RequestOptions(TypedDict, total=False):
    """Options of a request; see `EngineService.submit`."""

    schedule: str | ExitSchedule | None
    request_id: str | None
    deadline: float | None
    client: str
    draft: str | None


class EngineService(ABC):
    """A bundle that many asyncio clients generate with at once; they wait in one `RequestQueue`.

    `AsyncEngine` runs it in a thread, `ProcessEngine` in a process. Only the process that opened it
    can use it: in a forked child its methods raise SkipDecError.

    ``inputs`` reads and checks requests with the bundle's model, tokenizer and schedules, and
    ``requests`` holds those that have not ended. ``failure`` is done, with the reason, once the
    engine has failed for good. All three may be used from any thread.
    """

    def __init__(
        self, inputs: InputProcessor, max_waiting: int, suspects: Suspects | None = None
    ) -> None:
        self.inputs = inputs
        self.requests = RequestQueue(type(self).__name__, max_waiting, suspects)
        self.failure = self.requests.failure

    @property
    def refusal(self) -> str | None:
        """The reason why new requests are refused (draining, closed, failed), or None.

        Messages put the name of the engine before it.
        """
        return self.requests.refusal

    @property
    def unready(self) -> str | None:
        """The reason why new requests should go elsewhere: `refusal`, or a restart to wait for."""
        return self.refusal

    @property
    def seconds_in_step(self) -> float:
        """Seconds since a busy engine last ended a step or a scored text; 0.0 if it is idle."""
        return self.requests.seconds_silent

    @abstractmethod
    def require_possible(self, served: ServedRequest) -> None:
        """Raise CapacityError for a request that is known to be too large to run even alone."""

    def require_home(self) -> None:
        """Raise SkipDecError in a forked child, where no thread would answer."""
        self.requests.home.require()

    def start(self, served: ServedRequest) -> RequestStream:
        """Queue a request that `InputProcessor.prepare` made and return its stream."""
        stream = RequestStream(served, self.inputs.model.num_layers)
        self._enter(stream)
        return stream

    async def wait_for_scores(self, served: ServedRequest) -> ScoreOutput:
        """Queue a text that `InputProcessor.prepare_score` made and return its scores."""
        future = ScoreFuture(served)
        self._enter(future)
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

        A chat is rendered before this returns. A server that renders untrusted templates calls
        ``inputs.prepare`` in a thread, and then `start`.

        ``deadline``: seconds after which the request ends with finish_reason "abort" and
        stop_reason "deadline", whether it waits or runs. If the engine hangs or a step takes long,
        the request ends without the engine 0.2 s later, with the text so far.
        ``client``: any name for the caller. Clients take turns, one request each; all requests
        without a name belong to one client. Prefix caches and n-grams for drafts may be separate
        for each client.
        ``draft``: "off" runs this request without drafts if the engine drafts; its text stays the
        same.

        Raises UsageError, ScheduleError and CapacityError before the request is queued,
        OverloadedError if too many wait, and ClosedError while draining and once closed.
        """
        self.require_home()
        served = self.inputs.prepare(
            prompt,
            params,
            schedule=schedule,
            request_id=request_id,
            deadline=deadline,
            client=client,
            draft=draft,
        )
        return self.start(served)

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
        served = self.inputs.prepare_score(
            prompt,
            continuation,
            schedule=options.get("schedule"),
            request_id=options.get("request_id"),
            deadline=options.get("deadline"),
            top_logprobs=top_logprobs,
            followed_by=followed_by,
            client=options.get("client", ""),
        )
        return await self.wait_for_scores(served)

    async def abort(self, request_id: str) -> None:
        """End a request, if it has not ended; does nothing for an unknown one."""
        self.require_home()
        self.requests.cancel(request_id, "cancelled")

    @abstractmethod
    def stats(self) -> EngineStats:
        """Return the number of running and waiting requests, and the totals so far."""

    def seconds_until_room(self) -> float:
        """Estimate the seconds until the queue has room, from the mean time of past requests."""
        stats = self.stats()
        busy = stats.prefill_seconds + stats.decode_seconds
        busy += stats.sampling_seconds + stats.scoring_seconds
        ended = stats.finished + stats.aborted + stats.failed
        return max(1.0, busy / ended) if ended else 1.0

    async def drain(self, timeout: float | None = None) -> bool:
        """Refuse new requests and wait for the open ones to end; return False after ``timeout``.

        Raises UsageError for a ``timeout`` of NaN.
        """
        self.require_home()
        require_time("timeout", timeout)
        if self.requests.refusal is None:
            self.requests.refuse("is draining")
        return await self.requests.wait_until_idle(timeout)

    @abstractmethod
    def close(self) -> None:
        """Cancel and free everything; idempotent, from any thread but the engine's.

        Does nothing in a forked child, because everything belongs to the parent.
        """

    def _enter(self, pending: PendingRequest) -> None:
        self.require_home()
        self.require_possible(pending.served)
        self.requests.admit(pending, self.seconds_until_room)
