"""BatchScoring: texts that are scored between two steps of a running batch."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from ..requests.scoring import ScoreRequest
from ..schedule import ExitSchedule
from ..stitching.protocol import SlotStitcher
from ..tokens.outputs import ScoreOutput
from .loaded_bundle import LoadedBundle
from .scorer import Scorer
from .stats import Counters


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
        """Return whether texts have had their time, and running ones at least one step."""
        return text_seconds >= self._texts_until and not (running and steps == self._steps)

    def scored(self, seconds: float, text_seconds: float, steps: int) -> None:
        """Record that scoring a prompt took ``seconds``."""
        self._texts_until, self._steps = text_seconds + seconds, steps


class BatchScoring:
    """Scores texts on the engines of a running batch, in its thread, while no step runs.

    A text is one call over all of its tokens, which delays the running requests by its length. It
    has keys and values of its own, so a text that fails harms no other.
    """

    def __init__(self, loaded: LoadedBundle, slots: SlotStitcher, counters: Counters) -> None:
        self._pool = loaded.engines.pool
        self._slots = slots
        self._counters = counters
        self._scorer = Scorer(loaded)
        self._turns = ScoringTurns()

    def check(self, request: ScoreRequest) -> None:
        """Raise CapacityError for a text that could never be scored. Any thread may call it."""
        self._scorer.check([request])

    def is_due(self, request: ScoreRequest, *, running: bool) -> bool:
        """Return whether it is scoring's turn and the memory that ``request`` needs is free.

        ``running`` says whether rows run. A text that `run` would refuse is due in its turn.
        """
        counters = self._counters
        if not self._turns.is_due(counters.text_seconds, counters.steps, running=running):
            return False
        needed, limit = self._scorer.nbytes(request), self._pool.limit or 0
        in_use = self._pool.in_use_bytes - self._slots.prefix_bytes
        return needed > limit or in_use + needed <= limit

    def run(self, request: ScoreRequest, schedule: ExitSchedule) -> ScoreOutput:
        """Score a text; call it between two steps.

        Raises SkipDecError if an engine fails or makes no valid logits, CapacityError where memory
        is short, ClosedError if the generator was closed.
        """
        counters, start = self._counters, perf_counter()
        counters.submitted += 1
        try:
            self.check(request)
            self._slots.give_up_prefixes(self._scorer.nbytes(request))
            output = self._scorer.score(request, schedule)
        except Exception:
            counters.failed += 1
            raise
        finally:
            seconds = perf_counter() - start
            counters.scoring_seconds += seconds
            self._turns.scored(seconds, counters.text_seconds, counters.steps)
        counters.finished += 1
        counters.prompt_tokens += len(request.fed)
        return output

    def drop(self) -> None:
        """Count a text that was given up before it ran."""
        self._counters.submitted += 1
        self._counters.aborted += 1
