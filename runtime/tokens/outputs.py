"""Results of generation, in vLLM's shape: RequestOutput, CompletionOutput, Logprob.

One request (a prompt) has ``SamplingParams.n`` completions:

>>> request = generator.generate(["name[Alimentum], food["], SamplingParams(max_tokens=3))[0]
>>> request.outputs[0].token_ids, request.outputs[0].layers_per_token
((84, 269, 12), (12, 8, 8))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import reduce
from typing import Any, Literal

FinishReason = Literal["stop", "length", "abort", "error"]


class _Output:
    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, nested ones too, as a dict that ``json.dumps`` accepts."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]  # all are dataclasses


@dataclass(frozen=True, slots=True)
class Logprob(_Output):
    """Log-probability of one token under the raw distribution: no penalty, mask or temperature."""

    logprob: float
    rank: int | None = None  # 1 is the most probable token
    decoded_token: str | None = None  # the token's own text; None without a tokenizer


@dataclass(frozen=True, slots=True)
class Timings(_Output):
    """Wall-clock seconds of one completion."""

    time_to_first_token: float  # from the call of generate to the first output token
    inter_token_seconds: tuple[float, ...] = ()  # for each later token, since the one before it

    @property
    def decode_seconds(self) -> float:
        """Seconds from the first output token to the last."""
        return sum(self.inter_token_seconds)


@dataclass(frozen=True, slots=True)
class Drafts(_Output):
    """The drafts of one completion: tokens guessed in advance, and those that were right.

    Worked: 9 passes checked 36 drafted tokens, of which 30 were right: they wrote 39 tokens.
    """

    passes: int = 0  # after the prompt, with and without drafts
    drafted: int = 0
    accepted: int = 0

    @property
    def tokens_per_pass(self) -> float:
        """Mean number of tokens that a pass wrote; 1.0 before the first."""
        return 1.0 + self.accepted / self.passes if self.passes else 1.0

    def plus(self, other: Drafts) -> Drafts:
        """Return the sum of both."""
        return Drafts(
            self.passes + other.passes,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
        )

    @property
    def acceptance(self) -> float | None:
        """The share of drafted tokens that were right; None if none was drafted."""
        return self.accepted / self.drafted if self.drafted else None


@dataclass(frozen=True, slots=True)
class CompletionOutput(_Output):
    """One completion of one request."""

    index: int  # 0 … n-1 within its request
    text: str  # "" without a tokenizer
    token_ids: tuple[int, ...]  # including an end-of-text or stop token
    cumulative_logprob: float | None = None  # sum over token_ids; None without logprobs
    logprobs: tuple[dict[int, Logprob], ...] | None = None  # per token, with the chosen one
    finish_reason: FinishReason | None = None  # None while it runs
    # the stop token or string; None for end of text; with finish_reason "error", the error
    stop_reason: int | str | None = None
    layers_per_token: tuple[int, ...] = ()  # decoder layers run to produce each token
    timings: Timings | None = None
    drafts: Drafts | None = None  # None without drafts


@dataclass(frozen=True, slots=True)
class RequestOutput(_Output):
    """One request: its prompt and all of its completions."""

    request_id: str
    prompt: str | None  # None if token ids were given
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    finished: bool
    schedule: str = ""  # the full text of the exit schedule that it ran
    # per number in layers_per_token, the layers that ran: first and last of each run
    layer_ranges: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)

    @property
    def drafts(self) -> Drafts | None:
        """The sum over all completions; None without drafts."""
        counted = [one.drafts for one in self.outputs if one.drafts is not None]
        return reduce(Drafts.plus, counted) if counted else None


@dataclass(frozen=True, slots=True)
class StreamDelta(_Output):
    """The addition of one step to one completion."""

    request_index: int  # position of the prompt in the call
    index: int  # of the completion within its request
    token_ids: tuple[int, ...]
    text: str  # whole characters; "" while a character or a possible stop string is incomplete
    finish_reason: FinishReason | None  # set on the completion's last delta
    layers: int  # decoder layers run to produce the token
    logprobs: tuple[dict[int, Logprob], ...] | None = None  # per token, on request
    stop_reason: int | str | None = None  # as in CompletionOutput
    # the token was drafted and right; equal deltas may differ in how they were made
    drafted: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class ScoreOutput(_Output):
    """Log-probabilities of given tokens: a prompt's continuation, or the prompt's own."""

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]  # the scored tokens, which follow those of the prompt
    logprobs: tuple[float, ...]  # of each scored token, given all tokens before it
    layers_per_token: tuple[int, ...]
    schedule: str = ""  # the full text of the exit schedule that it ran
    top_logprobs: tuple[dict[int, Logprob], ...] | None = None  # per token, on request
    following: CompletionOutput | None = None  # the continuation, on request

    @property
    def cumulative_logprob(self) -> float:
        """Sum of ``logprobs``: log-probability of the whole continuation."""
        return sum(self.logprobs)


def joined(deltas: Sequence[StreamDelta]) -> CompletionOutput:
    """Return what ``deltas`` of one completion, at least one, add to it."""
    token_ids = tuple(token for delta in deltas for token in delta.token_ids)
    logprobs = tuple(entry for delta in deltas for entry in delta.logprobs or ())
    chosen = zip(token_ids, logprobs, strict=False)
    last = deltas[-1]
    return CompletionOutput(
        index=last.index,
        text="".join(delta.text for delta in deltas),
        token_ids=token_ids,
        cumulative_logprob=sum(entry[token].logprob for token, entry in chosen)
        if logprobs
        else None,
        logprobs=logprobs or None,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        layers_per_token=tuple(delta.layers for delta in deltas for _ in delta.token_ids),
    )
