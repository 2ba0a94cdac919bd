"""RunningRequest and Row: a request in flight and its completions."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Self

from ...engines.manifest import ModelSpec
from ..kv.plans import PromptRow, SlotMemory
from ..requests.request import Request
from ..schedule import ExitSchedule
from ..schedule.text import format_schedule
from ..tokens.outputs import (
    CompletionOutput,
    Drafts,
    FinishReason,
    Logprob,
    RequestOutput,
    StreamDelta,
    Timings,
)
from ..tokens.sampler import SampledToken, Sampler
from ..tokens.stopping import StopChecker
from ..tokens.tokenizer import Tokenizer
from .loaded_bundle import LoadedBundle


class Row:
    """The state of one completion: its tokens and their depths, sampler, stop checker and times.

    ``number`` names the row to the stitcher, and ``request_number`` names its request within the
    running batch. ``output_index`` says which of the request's ``n`` completions this is. ``start``
    is the ``perf_counter`` time at which the caller began to wait.
    """

    def __init__(
        self,
        request: Request,
        output_index: int,
        schedule: ExitSchedule,
        model: ModelSpec,
        tokenizer: Tokenizer | None,
        start: float,
        *,
        number: int = 0,
        request_number: int = 0,
    ) -> None:
        self.number = number
        self.request_number = request_number
        self.request = request
        self.output_index = output_index
        self.schedule = schedule
        self.token_ids: list[int] = []
        self.sampler = Sampler(
            request.params,
            request.prompt_token_ids,
            model.vocab_size,
            output_index,
            end_token_ids=model.end_token_ids,
            token_text=tokenizer.token_text if tokenizer else None,
        )
        self._stop_checker = StopChecker(
            request.params,
            max_tokens=request.max_tokens,
            end_token_ids=model.end_token_ids,
            decoder=tokenizer.incremental_decoder(request.params.skip_special_tokens)
            if tokenizer
            else None,
            special_ids=tokenizer.ids_of_special_tokens if tokenizer else {},
        )
        self._layers: list[int] = []  # number of layers of each token
        self._logprobs: list[dict[int, Logprob]] = []
        self._start = self._first_time = self._last_time = start
        self._inter_token_seconds: list[float] = []
        self._drafts: tuple[int, int] | None = None  # drafted and accepted tokens

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the row ended, or None while it runs."""
        return self._stop_checker.finish_reason

    @property
    def drafts(self) -> Drafts | None:
        """The row's drafts; None if it has none, and before its first pass."""
        passed = len(self.token_ids) - 1
        if self._drafts is None or passed < 1:
            return None
        drafted, accepted = self._drafts
        return Drafts(passed - accepted, drafted, accepted)

    def count_drafts(self, drafted: int, accepted: int) -> None:
        """Count a pass of a row that may draft: the guesses that it fed and those accepted."""
        before = self._drafts or (0, 0)
        self._drafts = before[0] + drafted, before[1] + accepted

    @property
    def num_positions(self) -> int:
        """The number of KV-cache positions in use; the last token has not been fed back yet."""
        return len(self.request.prompt_token_ids) + len(self.token_ids) - 1

    def accept(self, token: SampledToken, layers: int) -> StreamDelta:
        """Append a token that `sampler` drew from the output of ``layers`` layers."""
        self.token_ids.append(token.token_id)
        self._layers.append(layers)
        if token.logprobs is not None:
            self._logprobs.append(token.logprobs)
        text = self._stop_checker.push(token.token_id)
        delta = self._delta((token.token_id,), text, layers, token.logprobs)
        now = perf_counter()
        if len(self.token_ids) == 1:
            self._first_time = now
        else:
            self._inter_token_seconds.append(now - self._last_time)
        self._last_time = now
        return delta

    def abort(self, reason: str | None = None) -> StreamDelta:
        """End the row as cancelled, with ``reason`` as its stop_reason."""
        return self._delta((), self._stop_checker.abort(reason), 0)

    def fail(self, reason: str) -> StreamDelta:
        """End the row with finish_reason "error" and ``reason`` as its stop_reason."""
        self._stop_checker.fail(reason)
        return self._delta((), "", 0)

    def output(self) -> CompletionOutput:
        """Return the completion so far."""
        chosen = zip(self.token_ids, self._logprobs, strict=False)
        return CompletionOutput(
            index=self.output_index,
            text=self._stop_checker.text,
            token_ids=tuple(self.token_ids),
            cumulative_logprob=sum(logprobs[token].logprob for token, logprobs in chosen)
            if self._logprobs
            else None,
            logprobs=tuple(self._logprobs) if self._logprobs else None,
            finish_reason=self.finish_reason,
            stop_reason=self._stop_checker.stop_reason,
            layers_per_token=tuple(self._layers),
            timings=Timings(
                time_to_first_token=self._first_time - self._start,
                inter_token_seconds=tuple(self._inter_token_seconds),
            ),
            drafts=self.drafts,
        )

    def _delta(
        self,
        token_ids: tuple[int, ...],
        text: str,
        layers: int,
        logprobs: dict[int, Logprob] | None = None,
    ) -> StreamDelta:
        return StreamDelta(
            request_index=self.request.index,
            index=self.output_index,
            token_ids=token_ids,
            text=text,
            finish_reason=self.finish_reason,
            layers=layers,
            logprobs=None if logprobs is None else (logprobs,),
            stop_reason=self._stop_checker.stop_reason,
        )


def request_output(
    request: Request,
    schedule: ExitSchedule,
    completions: tuple[CompletionOutput, ...],
    *,
    finished: bool = True,
    request_id: str | None = None,
) -> RequestOutput:
    """Return the result of ``request`` at ``schedule``, named by its index without a request_id."""
    return RequestOutput(
        request_id=str(request.index) if request_id is None else request_id,
        prompt=request.prompt,
        prompt_token_ids=request.prompt_token_ids,
        outputs=completions,
        finished=finished,
        schedule=format_schedule(schedule),
        layer_ranges=schedule.layer_ranges(
            {depth for completion in completions for depth in completion.layers_per_token}
        ),
    )


@dataclass(frozen=True)
class RunningRequest:
    """A waiting or running request: its rows, one for each completion, which share its prompt.

    ``number`` names it within the running batch. ``start`` is the ``perf_counter`` time at which
    its caller began to wait.
    """

    number: int
    request: Request
    schedule: ExitSchedule
    rows: tuple[Row, ...]
    prompt: PromptRow
    start: float

    @classmethod
    def create(
        cls,
        loaded: LoadedBundle,
        memory: SlotMemory,
        number: int,
        request: Request,
        schedule: ExitSchedule,
        *,
        outputs: range,
        first_row: int,
        start: float,
        owner: str = "",
    ) -> Self:
        """Make rows ``first_row`` and up for the completions ``outputs`` of the request.

        ``owner`` owns the cached prefixes that the prompt may use, see `PromptRow`.
        """
        rows = tuple(
            Row(
                request,
                output_index,
                schedule,
                loaded.model,
                loaded.tokenizer,
                start,
                number=row,
                request_number=number,
            )
            for row, output_index in enumerate(outputs, first_row)
        )
        numbers = range(first_row, first_row + len(rows))
        tokens = request.prompt_token_ids
        prompt = memory.prompt_row(tokens, schedule, request.max_tokens, numbers, owner)
        return cls(number, request, schedule, rows, prompt, start)

    @property
    def prompt_length(self) -> int:
        """The number of the prompt's tokens."""
        return len(self.request.prompt_token_ids)

    @property
    def num_rows(self) -> int:
        """The number of completions that run side by side."""
        return len(self.rows)

    @property
    def client(self) -> str:
        """The name of the client that sent it."""
        return self.request.client

    @property
    def is_finished(self) -> bool:
        """Return whether all completions have ended."""
        return all(row.finish_reason is not None for row in self.rows)

    def output(self) -> RequestOutput:
        """Return the result so far."""
        completions = tuple(row.output() for row in self.rows)
        return request_output(self.request, self.schedule, completions, finished=self.is_finished)
