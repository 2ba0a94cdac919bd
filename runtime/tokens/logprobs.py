"""Log-probabilities of one row of logits: the chosen token's, and the most probable ones'."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...engines.memory import Array
from .outputs import Logprob

TokenText = Callable[[int], str]  # token id -> its own text


def row_logprobs(
    logits: Array, token_id: int, count: int, token_text: TokenText | None
) -> dict[int, Logprob]:
    """Return log-probabilities of ``logits`` float32 [V]: ``token_id``, then the ``count`` best."""
    best = float(logits.max())
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
