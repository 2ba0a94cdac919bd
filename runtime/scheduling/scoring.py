"""Scoring: log-probabilities of given tokens, each at the depth of the token before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from ...engines.constants import integer
from ...engines.errors import CapacityError
from ...engines.memory import Array
from ..kv.cache import KVCache
from ..kv.plans import KVPlan
from ..requests.request import Request
from ..requests.score_request import ScoreRequest
from ..schedule import ExitSchedule
from ..schedule.text import format_schedule
from ..stitching.slot_stitcher import SlotStitcher
from ..tokens.logits import HostLogits
from ..tokens.outputs import CompletionOutput, Logprob, ScoreOutput
from ..tokens.sampler import not_finite, row_logprobs
from ..tokens.tokenizer import Tokenizer
from .loaded_bundle import LoadedBundle
from .running_request import Row
from .stats import Counters

_CHUNK = integer("score_rows")  # logits at a time: 64 rows of OPT's vocabulary take 13 MB


@dataclass(frozen=True)
class Scorer:
    """Scores texts one by one on the engines of a bundle.

    The active tokens of a single row are a prefix in every layer, so one pass scores all of them.
    """

    loaded: LoadedBundle

    def check(self, requests: Sequence[ScoreRequest]) -> int:
        """Return the bytes of KV cache that the longest request needs; CapacityError if too many.

        Keys and values of a layer are needed only while it runs: one pair serves all layers.
        """
        if not requests:
            return 0
        limits = self.loaded.limits
        longest = max(requests, key=lambda request: len(request.fed))
        num_fed = len(longest.fed)
        for problem in limits.prompt_problems(f"text {longest.index}", num_fed):
            raise CapacityError("score", problem)
        needed = self.nbytes(longest)
        if needed > limits.kv_bytes:
            raise CapacityError(
                f"prompt {longest.index}",
                f"{num_fed} tokens need {needed:,} bytes of KV cache; kv_memory allows "
                f"{limits.kv_bytes:,}; raise it or shorten the text",
            )
        return needed

    def nbytes(self, request: ScoreRequest) -> int:
        """Return the bytes of KV cache that a request needs."""
        return self._plan(len(request.fed)).nbytes

    def score_all(
        self, requests: Sequence[ScoreRequest], schedules: Sequence[ExitSchedule]
    ) -> list[ScoreOutput]:
        """Hold the engines and score one request after another. Raises what `score` raises."""
        start = perf_counter()
        with self.loaded.engines.hold(planned_bytes=self.check(requests)):
            return [
                self.score(request, schedule, start)
                for request, schedule in zip(requests, schedules, strict=True)
            ]

    def score(self, request: ScoreRequest, schedule: ExitSchedule, start: float) -> ScoreOutput:
        """Score one checked request at ``schedule`` for the holder of the engines.

        ``start`` is the ``perf_counter`` time at which the caller began to wait. Raises LogitsError
        for logits that are NaN or +inf, and what `EngineLock.step` raises.
        """
        depths = request.depths(schedule)
        scores = _Scores(request, self.loaded.tokenizer)
        following = None
        engines, plan = self.loaded.engines, self._plan(len(request.fed))
        with engines.step() as stitcher, KVCache(engines.pool, plan) as cache:
            for logits in stitcher.score(
                request.fed,
                request.active_lengths(schedule),
                self.loaded.limits.kv_bucket(len(request.fed)),
                lambda _: cache.pair(0),
                request.positions,
                _CHUNK,
            ):
                rest = scores.take(logits)  # of float32 [<= _CHUNK, V]
                if request.followed_by is not None and len(rest):
                    following = self._follow(request.followed_by, schedule, rest, depths, start)
        return ScoreOutput(
            prompt_token_ids=request.prompt_token_ids,
            token_ids=request.token_ids,
            logprobs=tuple(scores.logprobs),
            layers_per_token=tuple(depths[: len(request.token_ids)]),
            schedule=format_schedule(schedule),
            top_logprobs=None if request.top_logprobs is None else tuple(scores.top_logprobs),
            following=following,
        )

    def _follow(
        self,
        request: Request,
        schedule: ExitSchedule,
        logits: Array,
        depths: Sequence[int],
        start: float,
    ) -> CompletionOutput:
        """Return the token that a request samples from ``logits`` float32 [1, V]."""
        row = Row(request, 0, schedule, self.loaded.model, self.loaded.tokenizer, start)
        row.accept(HostLogits(logits).sample(0, row.sampler), depths[-1])
        return row.output()

    def _plan(self, positions: int) -> KVPlan:
        """Plan one pair, which all layers write in turn."""
        capacity = self.loaded.limits.kv_bucket(positions) or positions
        return KVPlan(self.loaded.layout, ((1, capacity),))


@dataclass
class _Scores:
    """Log-probabilities of a request's tokens, collected chunk by chunk."""

    request: ScoreRequest
    tokenizer: Tokenizer | None
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[dict[int, Logprob]] = field(default_factory=list)

    def take(self, logits: Array) -> Array:
        """Read the next tokens' ``logits`` float32 [R, V]; return those after the last token."""
        request, done = self.request, len(self.logprobs)
        chosen = request.token_ids[done : done + len(logits)]
        subject = f"logits of text {request.index} from token {done} on"
        scored = logits[: len(chosen)]
        token_text = None if self.tokenizer is None else self.tokenizer.token_text
        if chosen and request.top_logprobs is None:
            self.logprobs += _chosen_logprobs(scored, chosen, subject)
        elif chosen:
            for row, token_id in zip(scored, chosen, strict=True):
                entry = row_logprobs(row, token_id, request.top_logprobs or 0, token_text, subject)
                self.logprobs.append(entry[token_id].logprob)
                self.top_logprobs.append(entry)
        return logits[len(chosen) :]


def _chosen_logprobs(logits: Array, token_ids: Sequence[int], subject: str) -> list[float]:
    """Return the log-softmax of each row of ``logits`` float32 [R, V] at its token.

    Raises LogitsError.
    """
    best: Array = logits.max(axis=1)  # [R]; NaN if any logit is
    if not np.isfinite(best).all():
        raise not_finite(logits, subject)
    log_totals = best + np.log(np.exp(logits - best[:, None]).sum(axis=1, dtype=np.float64))  # [R]
    chosen = logits[np.arange(len(token_ids)), list(token_ids)]  # [R]
    return [float(value) for value in chosen - log_totals]


@dataclass
class ScoringTurns:
    """Shares the time of a running batch between scored prompts and generated texts.

    Texts run for as long as the last scored prompt took before the next one is scored, so while
    texts run or wait, scoring takes at most about half of the time. ``text_seconds`` is the time
    that texts have taken so far, for their prompts and steps.
    """

    _steps: int = 0  # of texts, when a prompt was last scored
    _texts_until: float = 0.0  # the text_seconds from which the next prompt may be scored

    def is_due(self, text_seconds: float, steps: int, *, running: bool) -> bool:
        """Return whether texts have had their time, and running texts at least one step."""
        return text_seconds >= self._texts_until and not (running and steps == self._steps)

    def scored(self, seconds: float, text_seconds: float, steps: int) -> None:
        """Record that scoring a prompt took ``seconds``."""
        self._texts_until, self._steps = text_seconds + seconds, steps


class BatchScoring:
    """Scores texts on the engines of a running batch, in its thread, while no step runs.

    A text is one call over all of its tokens, which delays the running requests by its length. It
    uses a KV cache of its own, so a text that fails affects no other.
    """

    def __init__(self, loaded: LoadedBundle, slots: SlotStitcher, counters: Counters) -> None:
        self._pool = loaded.engines.pool
        self._slots = slots
        self._counters = counters
        self._scorer = Scorer(loaded)
        self._turns = ScoringTurns()

    def check(self, request: ScoreRequest) -> None:
        """Raise CapacityError for a text that could never be scored. Any thread may call it."""
        positions, most = request.positions.stop + 1, self._slots.limits.max_positions
        if positions > most:
            raise CapacityError(
                "prompt",
                f"the text to score has {positions:,} positions; max_model_len allows {most:,}; "
                "raise it or shorten the text",
            )
        self._scorer.check([request])

    def is_due(self, *, running: bool) -> bool:
        """Return whether it is scoring's turn; ``running`` says whether rows run."""
        counters = self._counters
        return self._turns.is_due(counters.text_seconds, counters.steps, running=running)

    def fits(self, request: ScoreRequest) -> bool:
        """Return whether `run` would find memory for a text that `check` accepted."""
        in_use = self._pool.in_use_bytes - self._slots.prefix_bytes
        return in_use + self._scorer.nbytes(request) <= self._pool.limit

    def run(self, request: ScoreRequest, schedule: ExitSchedule, start: float) -> ScoreOutput:
        """Score a text that has waited since ``start``; call it between two steps, after `check`.

        Raises SkipDecError if an engine fails or its logits are invalid, CapacityError if memory is
        short, and ClosedError if the generator was closed.
        """
        counters, begun = self._counters, perf_counter()
        counters.submitted += 1
        try:
            self._slots.give_up_prefixes(self._scorer.nbytes(request))
            output = self._scorer.score(request, schedule, start)
        except Exception:
            counters.failed += 1
            raise
        finally:
            seconds = perf_counter() - begun
            counters.scoring_seconds += seconds
            self._turns.scored(seconds, counters.text_seconds, counters.steps)
        counters.finished += 1
        counters.prompt_tokens += len(request.fed)
        return output

    def drop(self) -> None:
        """Count a text that was given up before it ran."""
        self._counters.submitted += 1
        self._counters.aborted += 1
