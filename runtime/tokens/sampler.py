"""Sampler: chooses one token from one row of a step's logits, with its own random stream."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...engines.errors import LogitsError, UsageError
from ...engines.memory import Array
from .drawing import MOST_PROBABLE, Logits, TokenDraw, TokenIds, drawer_of, min_p_margin
from .outputs import Logprob
from .sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The chosen token and, on request, log-probabilities by token id, the chosen one's first."""

    token_id: int
    logprobs: dict[int, Logprob] | None = None


@dataclass(frozen=True)
class Candidates:
    """The K most probable tokens of one row.

    ``logits`` float32 [K], largest first, and their ``token_ids`` int64 [K]. ``complete`` says that
    the vocabulary has no others.
    """

    logits: Logits
    token_ids: NDArray[np.int64]
    complete: bool


class Sampler:
    """Chooses the tokens of one running sequence.

    In this order, as in vLLM: penalties, ``min_tokens`` mask, temperature, min_p, top_k, top_p,
    softmax, draw (`Drawer`). Log-probabilities are those of the raw logits. The random stream
    depends on ``params.seed`` and ``output_index`` only and advances by one uniform number per
    token, so other sequences have no effect; without a seed it starts from fresh entropy.

    Only the repetition penalty reads ``prompt_token_ids``. ``token_text`` gives the
    ``decoded_token`` of log-probabilities. ``params`` name tokens of the vocabulary only, as
    `SamplingParams.vocabulary_problems` has checked.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        vocab_size: int,
        output_index: int = 0,
        *,
        end_token_ids: Collection[int] = (),
        token_text: Callable[[int], str] | None = None,
    ) -> None:
        self._params = params
        self._vocab_size = vocab_size
        self._token_text = token_text
        self._num_sampled = 0
        self._random = None if params.greedy else random_stream(params.seed, output_index)
        self._peeked: deque[float] = deque()  # random numbers of the next tokens
        self._drawer = None if params.greedy else drawer_of(params)
        self._penalties = _Penalties.of(params, prompt_token_ids)
        ending = sorted(params.ending_token_ids(end_token_ids)) if params.min_tokens else []
        self._ending_ids = np.array(ending, np.int64)  # [stop tokens]

    def sample(self, logits: Logits) -> SampledToken:
        """Choose the next token from ``logits`` (float32 [V], the caller's, left unchanged).

        Raises LogitsError if a logit that is not masked is NaN or +inf, or none is finite; for
        log-probabilities, if any logit is.
        """
        if logits.shape != (self._vocab_size,):
            raise UsageError("logits", f"are {logits.shape}; expected: ({self._vocab_size},)")
        adjusted = self._adjust(logits, self._num_sampled)
        token_id = self._choose(adjusted, self._next_uniform())
        subject = f"logits of output token {self._num_sampled}"
        if token_id is None:
            raise not_finite(logits, subject)
        self._num_sampled += 1
        if self._penalties is not None:
            self._penalties.add(token_id)
        count = self._params.logprobs
        if count is None:
            return SampledToken(token_id)
        entry = row_logprobs(logits, token_id, count, self._token_text, subject)
        return SampledToken(token_id, entry)

    def peek(self, index: int) -> float:
        """Return the random number of the ``index``-th next token, 0 for the next one.

        It is kept until that token is drawn. The parameters must not be greedy.
        """
        assert self._random is not None, "greedy texts have no random numbers"
        while len(self._peeked) <= index:
            self._peeked.append(self._random.random())
        return self._peeked[index]

    def propose(self, logits: Logits, index: int, token_ids: TokenIds | None = None) -> int:
        """Return what would be drawn from ``logits`` as the ``index``-th next token.

        ``logits`` float32 [V], or fewer: those of ``token_ids``, ascending, or of the vocabulary's
        first tokens. Changes no state: penalties are those of the tokens drawn so far. If no token
        can be drawn from the logits, it returns any token.
        """
        if len(logits) < self._vocab_size and self._adjusts:
            whole = np.full(self._vocab_size, -np.inf, np.float32)  # [V]
            whole[slice(len(logits)) if token_ids is None else token_ids] = logits
            logits, token_ids = whole, None
        adjusted = self._adjust(logits, self._num_sampled + index)
        uniform = None if self._random is None else self.peek(index)
        chosen = self._choose(adjusted, uniform, token_ids)
        if chosen is None:
            return 0
        return chosen if token_ids is None else int(token_ids[chosen])

    @property
    def takes_best(self) -> bool:
        """True if the next token is the most probable one, and only that token is needed."""
        return self._random is None and self.is_guessable and self._params.logprobs is None

    @property
    def is_guessable(self) -> bool:
        """True if a device can guess the next token from the most probable ones.

        It can't if penalties or a mask change logits, or any token of the vocabulary may be drawn.
        """
        params = self._params
        leaves_some = params.top_k > 0 or params.top_p < 1 or params.min_p > 0
        return (
            (self._random is None or leaves_some)
            and self._penalties is None
            and self._num_sampled >= params.min_tokens
        )

    @property
    def next_draw(self) -> TokenDraw | None:
        """Return how a device guesses the next token if `is_guessable`; None if `takes_best`."""
        if self._random is None:
            return None if self.takes_best else MOST_PROBABLE
        return TokenDraw.of(self._params, self.peek(0))

    def take_best(self, token_id: int) -> SampledToken:
        """Choose the most probable token, which the caller has found; only if `takes_best`."""
        self._num_sampled += 1
        return SampledToken(token_id)

    @property
    def _adjusts(self) -> bool:
        """True if penalties or a mask change logits before a token is chosen."""
        return self._penalties is not None or self._params.min_tokens > 0

    def sample_candidates(self, candidates: Candidates) -> SampledToken | None:
        """Choose the next token from the most probable ones; None if these don't decide.

        A returned token is the one that ``sample`` would return for all logits. Candidates decide
        if no other token can be chosen: when greedy, or if top_k or min_p exclude all logits up to
        the smallest candidate's. Penalties, log-probabilities, the ``min_tokens`` mask, and top_p
        without top_k or min_p need all logits.
        """
        needs_all = self._params.logprobs is not None
        if needs_all or not self._is_decided(candidates, self._num_sampled):
            return None  # even if no logit is finite: the error of `sample` counts all of them
        token_id = self._choose_candidate(candidates, self._next_uniform())
        if token_id is None:
            return None
        self._num_sampled += 1
        return SampledToken(token_id)

    def propose_candidates(self, candidates: Candidates, index: int) -> int | None:
        """Return what ``propose`` would for all logits; None if the candidates don't decide.

        ``index`` is as there, and no state changes. Log-probabilities need no other logits here.
        """
        if not self._is_decided(candidates, self._num_sampled + index):
            return None
        uniform = None if self._random is None else self.peek(index)
        return self._choose_candidate(candidates, uniform)

    def _is_decided(self, candidates: Candidates, num_before: int) -> bool:
        """Return True if only a candidate can be chosen after ``num_before`` output tokens."""
        if self._penalties is not None or num_before < self._params.min_tokens:
            return False
        if not math.isfinite(candidates.logits[0]):
            return False
        return candidates.complete or bool(self._lowest_kept(candidates) > candidates.logits[-1])

    def _choose_candidate(self, candidates: Candidates, uniform: float | None) -> int | None:
        """Return the chosen token; None if one is drawn and a logit is NaN."""
        if uniform is None:
            is_best = candidates.logits == candidates.logits[0]
            return int(candidates.token_ids[is_best].min())
        order = np.argsort(candidates.token_ids)  # of equal weights top_p keeps the lower ids
        token_ids = candidates.token_ids[order]
        index = self._choose(candidates.logits[order], uniform, token_ids)
        return None if index is None else int(token_ids[index])

    def _next_uniform(self) -> float | None:
        """Consume and return the next token's random number; None if greedy."""
        if self._random is None:
            return None
        return self._peeked.popleft() if self._peeked else self._random.random()

    def _choose(
        self, logits: Logits, uniform: float | None, token_ids: TokenIds | None = None
    ) -> int | None:
        """Return the chosen index; None if a logit is NaN or +inf, or none is finite."""
        if self._drawer is not None and uniform is not None:
            return self._drawer.draw(logits, uniform, token_ids)
        best = int(logits.argmax())  # the first NaN, if there is one
        return best if math.isfinite(logits[best]) else None

    def _lowest_kept(self, candidates: Candidates) -> np.float32:
        """Return the smallest logit that may be chosen, in float32 as a `Drawer` computes it."""
        params, best = self._params, np.float32(candidates.logits[0])
        if self._random is None:
            return best
        lowest = best + min_p_margin(params)
        if 0 < params.top_k < len(candidates.logits):
            lowest = np.maximum(lowest, candidates.logits[params.top_k - 1])
        return lowest

    def _adjust(self, logits: Logits, num_before: int) -> Logits:
        """Apply penalties and the ``min_tokens`` mask to a copy, or return ``logits`` unchanged.

        ``num_before`` is the number of output tokens before the chosen one.
        """
        masked = num_before < self._params.min_tokens and self._ending_ids.size > 0
        if self._penalties is None and not masked:
            return logits
        adjusted = logits.copy()  # [V]
        if self._penalties is not None:
            self._penalties.apply(adjusted)
        if masked:
            adjusted[self._ending_ids] = -np.inf
        return adjusted


class _Penalties:
    """Distinct tokens of prompt and output, with their counts in the output.

    ``_ids`` and ``_counts`` grow by doubling; the first ``_size`` entries are in use.
    """

    def __init__(self, params: SamplingParams, prompt_token_ids: Sequence[int]) -> None:
        self._params = params
        distinct = dict.fromkeys(prompt_token_ids) if params.repetition_penalty != 1 else {}
        self._index = {token_id: index for index, token_id in enumerate(distinct)}
        self._size = len(self._index)
        self._ids = np.zeros(max(64, 2 * self._size), np.int64)
        self._ids[: self._size] = list(distinct)
        self._counts = np.zeros(self._ids.size, np.float32)  # occurrences in the output

    @classmethod
    def of(cls, params: SamplingParams, prompt_token_ids: Sequence[int]) -> _Penalties | None:
        """Return the penalties of ``params``, or None if it has none."""
        penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
        return None if penalties == (1, 0, 0) else cls(params, prompt_token_ids)

    def add(self, token_id: int) -> None:
        """Count one output token."""
        index = self._index.setdefault(token_id, self._size)
        if index == self._size:
            if self._size == self._ids.size:
                self._ids = np.resize(self._ids, 2 * self._size)
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[index] = token_id
            self._size += 1
        self._counts[index] += 1

    def apply(self, logits: Logits) -> None:
        """Change ``logits`` in place, at the tokens seen so far."""
        ids, counts = self._ids[: self._size], self._counts[: self._size]
        seen = logits[ids]  # [distinct tokens]
        repetition = np.float32(self._params.repetition_penalty)
        seen = np.where(seen > 0, seen / repetition, seen * repetition)
        seen -= np.float32(self._params.frequency_penalty) * counts
        seen -= np.float32(self._params.presence_penalty) * (counts > 0)
        logits[ids] = seen


def row_logprobs(
    logits: Array, token_id: int, count: int, token_text: Callable[[int], str] | None, subject: str
) -> dict[int, Logprob]:
    """Return log-probabilities of ``logits`` float32 [V]: ``token_id``, then the ``count`` best.

    Raises LogitsError, which names ``subject``, if a logit is NaN or +inf, or none is finite.
    """
    best = float(logits.max())  # NaN if any logit is
    if not math.isfinite(best):
        raise not_finite(logits, subject)
    log_total = best + math.log(float(np.exp(logits - best).sum(dtype=np.float64)))
    top: list[int] = []
    if count > 0:
        threshold = np.partition(logits, -count)[-count]
        candidates = np.flatnonzero(logits >= threshold)
        order = np.argsort(-logits[candidates], kind="stable")  # ties: lower id first
        top = [int(candidate) for candidate in candidates[order[:count]]]
    ranks = {candidate: rank for rank, candidate in enumerate(top, start=1)}
    if token_id not in ranks:
        ranks[token_id] = int(np.count_nonzero(logits > logits[token_id])) + 1
    chosen_first = {token_id: ranks[token_id]} | ranks
    return {
        candidate: Logprob(
            logprob=float(logits[candidate]) - log_total,
            rank=rank,
            decoded_token=token_text(candidate) if token_text else None,
        )
        for candidate, rank in chosen_first.items()
    }


def not_finite(logits: Logits, subject: str) -> LogitsError:
    """Return the error about ``logits`` (any shape [..., V]) of which some are not finite."""
    for name, found in (("NaN", np.isnan(logits)), ("+inf", np.isposinf(logits))):
        if found.any():
            return LogitsError(
                subject,
                f"{int(found.sum())} of {logits.size} are {name}, the first at token id "
                f"{int(found.argmax()) % logits.shape[-1]}; the engines computed no valid "
                "distribution: run `skipdec verify` on the bundle, or export it as float32",
            )
    return LogitsError(subject, "no token can be chosen: all are -inf or stop tokens")


def random_stream(seed: int | None, output_index: int) -> np.random.Generator:
    """Return Philox 4x64-10 keyed (seed, output index), as docs/bundle-format.md specifies.

    Number t is the first 53 bits of its word t. Without a seed the key is fresh entropy.
    """
    key = None if seed is None else np.array([seed, output_index], np.uint64)
    return np.random.Generator(np.random.Philox(key=key))
