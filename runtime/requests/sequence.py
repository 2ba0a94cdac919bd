"""One completion while it runs: its tokens, sampler, stop checker, depths and times."""

from __future__ import annotations

from time import perf_counter

from ...engines.manifest import ModelSpec
from ..tokens.outputs import CompletionOutput, FinishReason, Logprob, StreamDelta, Timings
from ..tokens.sampler import SampledToken, Sampler
from ..tokens.stopping import StopChecker
from ..tokens.tokenizer import Tokenizer
from .planning import Row


class RunningSequence:
    """The state of one row between its prompt and its last token.

    ``call_start``: ``perf_counter`` seconds at which the caller began to wait.
    """

    def __init__(
        self, row: Row, model: ModelSpec, tokenizer: Tokenizer | None, call_start: float
    ) -> None:
        request = row.request
        self.request_index = request.index
        self.output_index = row.output_index
        self.prompt_token_ids = request.prompt_token_ids
        self.token_ids: list[int] = []
        self._layers: list[int] = []
        self._logprobs: list[dict[int, Logprob]] = []
        self._call_start = self._first_time = self._last_time = call_start
        self._step_seconds: list[float] = []
        self.sampler = Sampler(
            request.params,
            request.prompt_token_ids,
            model.vocab_size,
            row.output_index,
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

    @property
    def finish_reason(self) -> FinishReason | None:
        """None while the sequence runs."""
        return self._stop_checker.finish_reason

    @property
    def num_positions(self) -> int:
        """Positions of the KV cache that hold this row: the last token was not fed back yet."""
        return len(self.prompt_token_ids) + len(self.token_ids) - 1

    def accept(self, token: SampledToken, layers: int) -> StreamDelta:
        """Append a token that ``sampler`` chose from what ``layers`` layers made."""
        self.token_ids.append(token.token_id)
        self._layers.append(layers)
        if token.logprobs is not None:
            self._logprobs.append(token.logprobs)
        text = self._stop_checker.push(token.token_id)
        return self._delta((token.token_id,), text, layers, token.logprobs)

    def abort(self, reason: str | None = None) -> StreamDelta:
        """End the sequence as cancelled, with ``reason`` as its stop_reason."""
        return self._delta((), self._stop_checker.abort(reason), 0)

    def fail(self, reason: str) -> StreamDelta:
        """End the sequence with finish_reason "error" and ``reason`` as its stop_reason."""
        self._stop_checker.fail(reason)
        return self._delta((), "", 0)

    def record_time(self, step_start: float | None) -> None:
        """Note when the last token was there; ``step_start`` is None for the first one."""
        self._last_time = perf_counter()
        if step_start is None:
            self._first_time = self._last_time
        else:
            self._step_seconds.append(self._last_time - step_start)

    def output(self) -> CompletionOutput:
        """Return what there is so far."""
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
                time_to_first_token=self._first_time - self._call_start,
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
            request_index=self.request_index,
            index=self.output_index,
            token_ids=token_ids,
            text=text,
            finish_reason=self.finish_reason,
            layers=layers,
            logprobs=None if logprobs is None else (logprobs,),
            stop_reason=self._stop_checker.stop_reason,
        )
