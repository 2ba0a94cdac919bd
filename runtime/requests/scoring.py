"""Scoring: log-probabilities of a given continuation, at the depth of each of its tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from ...engines.errors import CapacityError, UsageError
from ...engines.manifest import ModelSpec
from ...engines.memory import Array
from ..kv.cache import KVCache, KVPlan
from ..kv.layout import KVLayout
from ..kv.pool import BufferPool
from ..schedule import ExitSchedule
from ..schedule.text import format_schedule
from ..stitching.stitcher import Stitcher
from ..tokens.logits import HostLogits
from ..tokens.logprobs import row_logprobs
from ..tokens.outputs import CompletionOutput, Logprob, ScoreOutput
from ..tokens.sampler import not_finite
from ..tokens.sampling import SamplingParams
from ..tokens.tokenizer import Tokenizer
from .planning import BatchLimits, Row
from .prompts import Prompt, Prompts, as_prompt_list, checked_token_ids
from .request import Request, make_request
from .sequence import RunningSequence

# Logits rows at a time: 64 of OPT's vocabulary are 13 MB.
_CHUNK = 64


@dataclass(frozen=True)
class ScoreRequest:
    """One prompt and the continuation to score, as token ids.

    ``is_prompt``: the continuation is the rest of the prompt, so its tokens have the depth at which
    a prompt is read. ``top_logprobs``: how many of the most probable tokens are reported beside
    each. ``followed_by``: a request for the one token behind all of these, at the same depth.
    ``client``: who asks, for turns between clients.
    """

    index: int
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    is_prompt: bool = False
    top_logprobs: int | None = None
    followed_by: Request | None = None
    client: str = ""

    @property
    def fed(self) -> tuple[int, ...]:
        """The tokens that engines read: a prompt whole, a continuation as far as it is asked of."""
        is_whole = self.is_prompt or self.followed_by is not None
        read = self.token_ids if is_whole else self.token_ids[:-1]
        return (*self.prompt_token_ids, *read)

    @property
    def positions(self) -> range:
        """Of the token before each that is scored, and before the one that follows."""
        first = len(self.prompt_token_ids) - 1
        return range(first, first + len(self.token_ids) + (self.followed_by is not None))

    def active_lengths(self, schedule: ExitSchedule) -> list[int]:
        """For each layer, how many of the first tokens run it."""
        fed = len(self.fed)
        prompt_length = fed if self.is_prompt else len(self.prompt_token_ids)
        return schedule.active_lengths(prompt_length, fed - prompt_length)

    def depths(self, schedule: ExitSchedule) -> list[int]:
        """Layers run by the token at each of ``positions``."""
        prompt_length = len(self.prompt_token_ids)
        if self.is_prompt:
            return [schedule.prompt_budget(place, len(self.fed)) for place in self.positions]
        first = schedule.prompt_budget(prompt_length - 1, prompt_length)
        return [first, *(schedule.budget(index) for index in range(len(self.positions) - 1))]


def make_score_requests(
    prompts: Prompts,
    continuations: Prompts,
    model: ModelSpec,
    tokenizer: Tokenizer | None,
) -> list[ScoreRequest]:
    """Pair prompts with continuations, tokenize and check them; all problems in one UsageError."""
    prompt_list = as_prompt_list(prompts)
    continuation_list = as_prompt_list(continuations)
    if len(prompt_list) != len(continuation_list):
        raise UsageError(
            "score",
            f"there are {len(prompt_list)} prompts and {len(continuation_list)} continuations; "
            "give one continuation a prompt",
        )
    requests = []
    problems: list[str] = []
    for index, (prompt, continuation) in enumerate(
        zip(prompt_list, continuation_list, strict=True)
    ):
        found, prompt_ids = checked_token_ids(prompt, f"prompt {index}", model, tokenizer)
        more, token_ids = checked_token_ids(
            continuation, f"continuation {index}", model, tokenizer, is_continuation=True
        )
        found += more
        length = len(prompt_ids) + len(token_ids)
        if not found and length > model.max_seq_len:
            found.append(
                f"prompt {index} and its continuation have {length} tokens; the bundle holds "
                f"{model.max_seq_len} positions"
            )
        problems += found
        requests.append(ScoreRequest(index, prompt_ids, token_ids))
    if problems:
        raise UsageError("score", *problems)
    return requests


def make_score_request(
    prompt: Prompt,
    continuation: Prompt | None,
    model: ModelSpec,
    tokenizer: Tokenizer | None,
    *,
    top_logprobs: int | None = None,
    followed_by: SamplingParams | None = None,
    client: str = "",
) -> ScoreRequest:
    """Tokenize and check one text; without a continuation, the prompt's own tokens are scored.

    ``followed_by``: how one token behind all of these is sampled. Raises UsageError.
    """
    if top_logprobs is not None and not 0 <= top_logprobs <= model.vocab_size:
        allowed = f"0 to {model.vocab_size}"
        raise UsageError("top_logprobs", f"is {top_logprobs}; allowed: {allowed}, or None")
    if continuation is None:
        problems, token_ids = checked_token_ids(prompt, "prompt", model, tokenizer)
        if problems:
            raise UsageError("score", *problems)
        made = ScoreRequest(0, token_ids[:1], token_ids[1:], is_prompt=True)
    else:
        (made,) = make_score_requests([prompt], [continuation], model, tokenizer)
    following = None
    if followed_by is not None:
        if (followed_by.n, followed_by.max_tokens) != (1, 1):
            raise UsageError(
                "followed_by",
                f"has n {followed_by.n} and max_tokens {followed_by.max_tokens}; allowed: 1 and "
                "1; more tokens are a request's",
            )
        token_ids = (*made.prompt_token_ids, *made.token_ids)
        following = make_request(0, token_ids, followed_by, model, tokenizer, "prompt")
    return replace(made, top_logprobs=top_logprobs, followed_by=following, client=client)


class Scorer:
    """Scores requests one by one: one row's active tokens are a prefix in every layer."""

    def __init__(
        self,
        pool: BufferPool,
        layout: KVLayout,
        limits: BatchLimits,
        model: ModelSpec,
        tokenizer: Tokenizer | None,
    ) -> None:
        self._pool = pool
        self._layout = layout
        self._limits = limits
        self._model = model
        self._tokenizer = tokenizer

    def check(self, requests: Sequence[ScoreRequest]) -> int:
        """Return the bytes of KV cache that the longest request needs; CapacityError if too many.

        Keys and values of a layer are needed only while it runs: one pair serves all layers.
        """
        if not requests:
            return 0
        longest = max(requests, key=lambda request: len(request.fed))
        num_fed = len(longest.fed)
        for problem in self._limits.check_prompt(f"text {longest.index}", num_fed):
            raise CapacityError("score", problem)
        kv_limit = self._limits.kv_bytes
        needed = self.nbytes(longest)
        if needed > kv_limit:
            raise CapacityError(
                f"prompt {longest.index}",
                f"{num_fed} tokens need {needed:,} bytes of KV cache; kv_memory allows "
                f"{kv_limit:,}; raise it or shorten the text",
            )
        return needed

    def nbytes(self, request: ScoreRequest) -> int:
        """Bytes of KV cache that a request needs."""
        return self._plan(len(request.fed)).nbytes

    def score(
        self, stitcher: Stitcher, request: ScoreRequest, schedule: ExitSchedule
    ) -> ScoreOutput:
        """Score one checked request at ``schedule``.

        Raises LogitsError for logits that are NaN or +inf.
        """
        start = perf_counter()
        depths = request.depths(schedule)
        rows = _Rows(request, self._tokenizer)
        following = None
        for logits in self._logits(stitcher, request, schedule):  # float32 [<= _CHUNK, V]
            rest = rows.take(logits)
            if request.followed_by is not None and len(rest):
                following = self._follow(request.followed_by, rest, depths[-1], start)
        return ScoreOutput(
            prompt_token_ids=request.prompt_token_ids,
            token_ids=request.token_ids,
            logprobs=tuple(rows.logprobs),
            layers_per_token=tuple(depths[: len(request.token_ids)]),
            schedule=format_schedule(schedule),
            top_logprobs=None if request.top_logprobs is None else tuple(rows.top_logprobs),
            following=following,
        )

    def _logits(
        self, stitcher: Stitcher, request: ScoreRequest, schedule: ExitSchedule
    ) -> Iterator[Array]:
        """Logits at the token before each that is asked for, float32 [<= _CHUNK, V] at a time."""
        with KVCache(self._pool, self._plan(len(request.fed))) as cache:
            active_lengths = request.active_lengths(schedule)
            yield from stitcher.score(cache, request.fed, active_lengths, request.positions, _CHUNK)

    def _follow(
        self, request: Request, logits: Array, depth: int, start: float
    ) -> CompletionOutput:
        """The token that a request samples from ``logits`` float32 [1, V]."""
        sequence = RunningSequence(Row(request, 0), self._model, self._tokenizer, start)
        sequence.accept(HostLogits(logits).sample(0, sequence.sampler), depth)
        sequence.record_time(None)
        return sequence.output()

    def _plan(self, positions: int) -> KVPlan:
        """One scratch pair for all layers."""
        bucket = self._limits.kv_bucket(positions)
        return KVPlan(
            self._layout,
            1,
            (),
            scratch_rows=1,
            scratch_capacity=bucket or positions,
            bucket=bucket,
        )


class _Rows:
    """Log-probabilities of a request's tokens, as their logits come."""

    def __init__(self, request: ScoreRequest, tokenizer: Tokenizer | None) -> None:
        self._request = request
        self._token_text = None if tokenizer is None else tokenizer.token_text
        self.logprobs: list[float] = []
        self.top_logprobs: list[dict[int, Logprob]] = []

    def take(self, logits: Array) -> Array:
        """Read the next tokens' ``logits`` float32 [R, V]; return those behind the last token."""
        request, done = self._request, len(self.logprobs)
        chosen = request.token_ids[done : done + len(logits)]
        subject = f"logits of text {request.index} from token {done} on"
        scored = logits[: len(chosen)]
        if chosen and request.top_logprobs is None:
            self.logprobs += _chosen_logprobs(scored, chosen, subject)
        elif chosen:
            _require_finite(scored, subject)
            for row, token_id in zip(scored, chosen, strict=True):
                entry = row_logprobs(row, token_id, request.top_logprobs or 0, self._token_text)
                self.logprobs.append(entry[token_id].logprob)
                self.top_logprobs.append(entry)
        return logits[len(chosen) :]


def _require_finite(logits: Array, subject: str) -> Array:
    """The largest of each row of ``logits`` float32 [R, V]. Raises LogitsError."""
    best: Array = logits.max(axis=1)  # [R]; NaN where a logit is
    if not np.isfinite(best).all():
        raise not_finite(logits, subject)
    return best


def _chosen_logprobs(logits: Array, token_ids: Sequence[int], subject: str) -> list[float]:
    """Log-softmax of each row of ``logits`` float32 [R, V] at one token a row."""
    best = _require_finite(logits, subject)
    log_totals = best + np.log(np.exp(logits - best[:, None]).sum(axis=1, dtype=np.float64))  # [R]
    chosen = logits[np.arange(len(token_ids)), list(token_ids)]  # [R]
    return [float(value) for value in chosen - log_totals]
