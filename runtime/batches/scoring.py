"""Scoring: log-probabilities of a given continuation, at the depth of each of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
from ..tokens.outputs import ScoreOutput
from ..tokens.sampler import not_finite
from ..tokens.tokenizer import Tokenizer
from .planning import BatchLimits
from .prompts import Prompts, as_prompt_list, checked_token_ids

# Logits rows at a time: 64 of OPT's vocabulary are 13 MB.
_CHUNK = 64


@dataclass(frozen=True)
class ScoreRequest:
    """One prompt and the continuation to score, as token ids."""

    index: int
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]


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


class Scorer:
    """Scores requests one by one: one row's active tokens are a prefix in every layer."""

    def __init__(self, pool: BufferPool, layout: KVLayout, limits: BatchLimits) -> None:
        self._pool = pool
        self._layout = layout
        self._limits = limits

    def check(self, requests: Sequence[ScoreRequest]) -> int:
        """Return the bytes of KV cache that the longest request needs; CapacityError if too many.

        Keys and values of a layer are needed only while it runs: one pair serves all layers.
        """
        if not requests:
            return 0
        longest = max(requests, key=_num_fed)
        for problem in self._limits.check_prompt(f"text {longest.index}", _num_fed(longest)):
            raise CapacityError("score", problem)
        kv_limit = self._limits.kv_bytes
        needed = self._plan(_num_fed(longest)).nbytes
        if needed > kv_limit:
            raise CapacityError(
                f"prompt {longest.index}",
                f"{_num_fed(longest)} tokens need {needed:,} bytes of KV cache; kv_memory allows "
                f"{kv_limit:,}; raise it or shorten the text",
            )
        return needed

    def score(
        self, stitcher: Stitcher, request: ScoreRequest, schedule: ExitSchedule
    ) -> ScoreOutput:
        """Score one checked request at ``schedule``.

        Raises SkipDecError for logits that are NaN or +inf.
        """
        prompt_length = len(request.prompt_token_ids)
        num_tokens = len(request.token_ids)
        tokens = (*request.prompt_token_ids, *request.token_ids[:-1])
        positions = range(prompt_length - 1, prompt_length - 1 + num_tokens)
        plan = self._plan(len(tokens))
        logprobs: list[float] = []
        with KVCache(self._pool, plan) as cache:
            active_lengths = schedule.active_lengths(prompt_length, num_tokens - 1)
            chunks = stitcher.score(cache, tokens, active_lengths, positions, _CHUNK)
            for logits in chunks:  # float32 [<= _CHUNK, V]
                chosen = request.token_ids[len(logprobs) : len(logprobs) + len(logits)]
                logprobs += _chosen_logprobs(
                    logits, chosen, f"logits of text {request.index} from token {len(logprobs)} on"
                )
        budgets = (schedule.budget(index) for index in range(num_tokens - 1))
        return ScoreOutput(
            prompt_token_ids=request.prompt_token_ids,
            token_ids=request.token_ids,
            logprobs=tuple(logprobs),
            layers_per_token=(
                schedule.prompt_budget(prompt_length - 1, prompt_length),
                *budgets,
            ),
            schedule=format_schedule(schedule),
        )

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


def _num_fed(request: ScoreRequest) -> int:
    return len(request.prompt_token_ids) + len(request.token_ids) - 1


def _chosen_logprobs(logits: Array, token_ids: Sequence[int], subject: str) -> list[float]:
    """Log-softmax of each row of ``logits`` float32 [R, V] at one token a row."""
    best = logits.max(axis=1)  # [R]; NaN where a logit is
    if not np.isfinite(best).all():
        raise not_finite(logits, subject)
    log_totals = best + np.log(np.exp(logits - best[:, None]).sum(axis=1, dtype=np.float64))  # [R]
    chosen = logits[np.arange(len(token_ids)), list(token_ids)]  # [R]
    return [float(value) for value in chosen - log_totals]
