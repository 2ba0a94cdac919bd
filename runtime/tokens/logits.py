"""StepLogits: the logits of a pass to sample from, on the host or on a device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite

import numpy as np
from typing_extensions import override

from ...engines.memory import Array
from .sampler import Candidates, SampledToken, Sampler


class StepLogits(ABC):
    """The logits of all rows of one step; valid until the next step."""

    @abstractmethod
    def sample(self, row: int, sampler: Sampler) -> SampledToken:
        """Let ``sampler`` choose a token from the logits of ``row``."""

    @abstractmethod
    def propose(self, row: int, sampler: Sampler, index: int) -> int:
        """Let ``sampler`` propose its ``index``-th next token from the logits of ``row``."""

    @abstractmethod
    def probability(self, row: int, token_id: int) -> float:
        """Return the probability of a proposed token by the logits of ``row``, at temperature 1.

        It is relative to the tokens whose logits are available, and NaN if these are not finite.
        """


@dataclass(frozen=True)
class HostLogits(StepLogits):
    """Logits in the host's memory: float32 [rows, V], or [V] per row."""

    logits: Array | Sequence[Array]

    @override
    def sample(self, row: int, sampler: Sampler) -> SampledToken:
        return sampler.sample(self.logits[row])

    @override
    def propose(self, row: int, sampler: Sampler, index: int) -> int:
        return sampler.propose(self.logits[row], index)

    @override
    def probability(self, row: int, token_id: int) -> float:
        return _probability(self.logits[row], token_id)


@dataclass(frozen=True)
class KeptLogits(HostLogits):
    """Logits float32 [rows, N] of only the tokens ``token_ids`` int64 [N], ascending."""

    token_ids: Array

    @override
    def propose(self, row: int, sampler: Sampler, index: int) -> int:
        return sampler.propose(self.logits[row], index, self.token_ids)

    @override
    def probability(self, row: int, token_id: int) -> float:
        return _probability(self.logits[row], int(np.searchsorted(self.token_ids, token_id)))


@dataclass(frozen=True)
class CandidateLogits(StepLogits):
    """The K most probable tokens of each row, as a device chose them.

    All logits of a row are fetched only if its candidates don't decide.
    ``top_logits`` float32 [rows, K], largest first; ``top_token_ids`` int64 [rows, K];
    ``fetch(row)`` returns float32 [V].
    """

    top_logits: Array
    top_token_ids: Array
    vocab_size: int
    fetch: Callable[[int], Array]

    @cached_property
    def _best(self) -> list[int | None]:
        """The most probable token of each row; None if several tie or its logit is not finite."""
        if self.top_logits.shape[1] == 1:
            return [None] * len(self.top_logits)
        first, second = self.top_logits[:, 0], self.top_logits[:, 1]
        leads = (np.isfinite(first) & (first > second)).tolist()
        tokens = self.top_token_ids[:, 0].tolist()
        return [token if lead else None for token, lead in zip(tokens, leads, strict=True)]

    @override
    def sample(self, row: int, sampler: Sampler) -> SampledToken:
        if sampler.takes_best and (best := self._best[row]) is not None:
            return sampler.take_best(best)
        token = sampler.sample_candidates(self._candidates(row))
        return sampler.sample(self.fetch(row)) if token is None else token

    @override
    def propose(self, row: int, sampler: Sampler, index: int) -> int:
        token_id = sampler.propose_candidates(self._candidates(row), index)
        return sampler.propose(self.fetch(row), index) if token_id is None else token_id

    @override
    def probability(self, row: int, token_id: int) -> float:
        found = np.flatnonzero(self.top_token_ids[row] == token_id)
        return _probability(self.top_logits[row], int(found[0])) if len(found) else 0.0

    def of_rows(self, rows: Sequence[int]) -> CandidateLogits:
        """Return the logits of some rows, in the given order."""
        return CandidateLogits(
            self.top_logits[rows],
            self.top_token_ids[rows],
            self.vocab_size,
            lambda row: self.fetch(rows[row]),
        )

    def _candidates(self, row: int) -> Candidates:
        return Candidates(
            self.top_logits[row],
            self.top_token_ids[row],
            complete=self.top_logits.shape[1] == self.vocab_size,
        )


def _probability(logits: Array, index: int) -> float:
    """Return the softmax of ``logits`` [N] at ``index``; NaN if the highest is not finite."""
    best = logits.max()
    if not isfinite(best):
        return float("nan")
    weights = np.exp(logits - best)
    return float(weights[index] / weights.sum())
