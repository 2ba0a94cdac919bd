"""Row: one completion of a request, from its prompt to its last token."""

from __future__ import annotations

from time import perf_counter

from ...engines.manifest import ModelSpec
from ..schedule import ExitSchedule
from ..tokens.outputs import CompletionOutput, FinishReason, Logprob, StreamDelta, Timings
from ..tokens.sampler import SampledToken, Sampler
from ..tokens.stopping import StopChecker
from ..tokens.tokenizer import Tokenizer
from .request import Request


class Row:
    """The state of one completion: its tokens and their depths, how it samples, stops, and times.

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
            eos_token_id=model.eos_token_id,
            token_text=tokenizer.token_text if tokenizer else None,
        )
        self._stop_checker = StopChecker(
            request.params,
            max_tokens=request.max_tokens,
            eos_token_id=model.eos_token_id,
            decoder=tokenizer.incremental_decoder(request.params.skip_special_tokens)
            if tokenizer
            else None,
        )
        self._layers: list[int] = []  # that each token took
        self._logprobs: list[dict[int, Logprob]] = []
        self._start = self._first_time = self._last_time = start
        self._step_seconds: list[float] = []

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the row ended, or None while it runs."""
        return self._stop_checker.finish_reason

    @property
    def num_positions(self) -> int:
        """The number of KV-cache positions in use; the last token has not been fed back yet."""
        return len(self.request.prompt_token_ids) + len(self.token_ids) - 1

    @property
    def first_depth(self) -> int:
        """The number of layers that the prompt's last token runs, which yields the first token."""
        length = len(self.request.prompt_token_ids)
        return self.schedule.prompt_budget(length - 1, length)

    def accept(
        self, token: SampledToken, layers: int, *, step_start: float | None = None
    ) -> StreamDelta:
        """Append a token that `sampler` drew from the output of ``layers`` layers.

        ``step_start`` is the ``perf_counter`` time at which its step began, None for the first
        token.
        """
        self.token_ids.append(token.token_id)
        self._layers.append(layers)
        if token.logprobs is not None:
            self._logprobs.append(token.logprobs)
        text = self._stop_checker.push(token.token_id)
        delta = self._delta((token.token_id,), text, layers, token.logprobs)
        self._last_time = perf_counter()
        if step_start is None:
            self._first_time = self._last_time
        else:
            self._step_seconds.append(self._last_time - step_start)
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
                step_seconds=tuple(self._step_seconds),
                decode_seconds=self._last_time - self._first_time,
            ),
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
