"""Texts that are scored between two steps of what runs."""

from __future__ import annotations

from functools import partial
from time import perf_counter

from ..requests.scoring import ScoreRequest
from ..schedule import ExitSchedule
from ..tokens.outputs import ScoreOutput
from .parts import EngineParts
from .stats import Counters


class EngineScoring:
    """Scores texts with an engine's own engines, in its thread, while no step runs.

    A text is one call over all of its tokens: what runs beside it waits as long. Its keys and
    values are nobody else's, so a text that fails harms no other.
    """

    def __init__(self, parts: EngineParts, counters: Counters) -> None:
        self._parts = parts
        self._counters = counters

    @property
    def seconds(self) -> float:
        """Time that scoring has taken so far."""
        return self._counters.scoring_seconds

    @property
    def text_seconds(self) -> float:
        """Time that texts have taken so far: their prompts, their steps and sampling."""
        counters = self._counters
        return counters.prefill_seconds + counters.decode_seconds + counters.sampling_seconds

    @property
    def text_steps(self) -> int:
        """Decode steps of texts so far."""
        return self._counters.steps

    def check(self, request: ScoreRequest) -> None:
        """Raise CapacityError for a text that could never be scored. From any thread."""
        self._parts.scorer.check([request])

    def fits(self, request: ScoreRequest) -> bool:
        """Whether the memory that it needs is free now; true of what `run` refuses at once."""
        pool, needed = self._parts.engines.pool, self._parts.scorer.nbytes(request)
        limit = pool.limit or 0
        in_use = pool.in_use_bytes - self._parts.slots.prefix_bytes
        return needed > limit or in_use + needed <= limit

    def run(self, request: ScoreRequest, schedule: ExitSchedule) -> ScoreOutput:
        """Score a text; between two steps.

        Raises SkipDecError if an engine fails or makes no valid logits, CapacityError where memory
        is short, ClosedError if the generator was closed.
        """
        parts, counters, start = self._parts, self._counters, perf_counter()
        counters.submitted += 1
        try:
            parts.scorer.check([request])
            parts.slots.give_up_prefixes(parts.scorer.nbytes(request))
            output = parts.engines.run(
                partial(parts.scorer.score, request=request, schedule=schedule)
            )
        except Exception:
            counters.failed += 1
            raise
        finally:
            counters.scoring_seconds += perf_counter() - start
        counters.finished += 1
        counters.prompt_tokens += len(request.fed)
        return output

    def drop(self) -> None:
        """Count a text that was given up before it ran."""
        self._counters.submitted += 1
        self._counters.aborted += 1
