"""EngineService: what a server asks of a bundle's engine, in this process or in others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Future

from ..requests.prompts import Prompt
from ..schedule import ExitSchedule
from ..scheduling.stats import EngineStats
from ..tokens.outputs import RequestOutput, ScoreOutput
from ..tokens.sampling import SamplingParams
from .outline import BundleOutline
from .stream import RequestStream


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
        """Why new requests are refused: it is draining, closed, or has failed; None: they aren't.

        The end of a sentence that begins with its name.
        """

    @property
    @abstractmethod
    def unready(self) -> str | None:
        """Why new requests should go elsewhere: `refusal`, or they would wait for a new start."""

    @property
    @abstractmethod
    def failure(self) -> Future[str]:
        """Done once it has failed for good, with the reason; from any thread."""

    @property
    @abstractmethod
    def seconds_in_step(self) -> float:
        """How long the step that runs has taken so far; 0.0 where none does."""

    @abstractmethod
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
        """Queue a request and return its stream; call it where an event loop runs.

        ``deadline``: seconds from now, after which it ends with finish_reason "abort" and
        stop_reason "deadline", whether it waits or runs. If the engine hangs, or a step takes
        long, it ends without the engine, a fifth of a second later, with what has come so far.
        ``client``: any name of whoever asks; clients take turns, a request each, and those without
        a name are one client. A prefix cache may be each client's own.

        Raises, before it is queued, UsageError, ScheduleError and CapacityError; OverloadedError if
        too many wait, ClosedError while draining and when closed.
        """

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        schedule: str | ExitSchedule | None = None,
        request_id: str | None = None,
        deadline: float | None = None,
        client: str = "",
    ) -> RequestOutput:
        """Return the whole result of a request; cancelling the call cancels it. See `submit`."""
        stream = self.submit(
            prompt,
            params,
            schedule=schedule,
            request_id=request_id,
            deadline=deadline,
            client=client,
        )
        async with stream:
            return await stream.output()

    @abstractmethod
    async def score(
        self,
        prompt: Prompt,
        continuation: Prompt | None = None,
        *,
        schedule: str | ExitSchedule | None = None,
        top_logprobs: int | None = None,
        followed_by: SamplingParams | None = None,
        request_id: str | None = None,
        deadline: float | None = None,
        client: str = "",
    ) -> ScoreOutput:
        """Log-probabilities of given tokens, between two steps of what runs; as `Generator.score`.

        Without a ``continuation``, of the prompt's own tokens but for the first, at the depth at
        which a prompt is read. ``top_logprobs``: of so many of the most probable tokens, too.
        ``followed_by``, of max_tokens 1: the result has the token behind all of these as
        ``following``. ``client``: as in `submit`. Cancelling the call cancels it.

        Raises what `submit` raises, TimeoutError if the deadline is over before it was its turn,
        ClosedError if it was aborted, SkipDecError if an engine fails.
        """

    @abstractmethod
    async def abort(self, request_id: str) -> None:
        """End a request, if it has not ended; unknown ones are no error."""

    @abstractmethod
    def stats(self) -> EngineStats:
        """What runs, waits and was done so far."""

    @abstractmethod
    async def drain(self, timeout: float | None = None) -> bool:
        """Refuse new requests and wait until those there are have ended; whether they have."""

    @abstractmethod
    def end_all(self, error: Exception) -> None:
        """End every open request with ``error`` at once, whatever its engine does; then close."""

    @abstractmethod
    def close(self) -> None:
        """Cancel everything and free all; idempotent, from any thread but the engine's.

        In a forked child nothing is done: all of it is the parent's.
        """


def seconds_until_room(stats: EngineStats) -> float:
    """When to try again where too many wait: guessed from what a request has taken so far."""
    ended = stats.finished + stats.aborted
    busy = stats.prefill_seconds + stats.decode_seconds + stats.sampling_seconds
    busy += stats.scoring_seconds
    return max(1.0, busy / ended if ended else 1.0)
