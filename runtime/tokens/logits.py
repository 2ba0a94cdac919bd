"""A step's input to the samplers: all logits of a row, or the candidates that a device chose."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...engines.memory import Array
from .sampler import Candidates, SampledToken, Sampler


class StepLogits(ABC):
    """The logits of all rows of one step; valid until the next one."""

    @abstractmethod
    def sample(self, row: int, sampler: Sampler) -> SampledToken:
        """Let ``sampler`` choose a token from the logits of ``row``."""


@dataclass(frozen=True)
class HostLogits(StepLogits):
    """Logits in the host's memory: float32 [rows, V], or [V] a row."""

    logits: Array | Sequence[Array]

    def sample(self, row: int, sampler: Sampler) -> SampledToken:
        """See StepLogits."""
        return sampler.sample(self.logits[row])


@dataclass(frozen=True)
class CandidateLogits(StepLogits):
    """The K most probable tokens of each row; all of its logits are fetched only if these
    don't decide.

    ``top_logits`` float32 [rows, K], largest first; ``top_token_ids`` int64 [rows, K];
    ``fetch(row)`` returns float32 [V].
    """

    top_logits: Array
    top_token_ids: Array
    vocab_size: int
    fetch: Callable[[int], Array]

    def sample(self, row: int, sampler: Sampler) -> SampledToken:
        """See StepLogits."""
        candidates = Candidates(
            self.top_logits[row],
            self.top_token_ids[row],
            complete=self.top_logits.shape[1] == self.vocab_size,
        )
        token = sampler.sample_candidates(candidates)
        return sampler.sample(self.fetch(row)) if token is None else token
