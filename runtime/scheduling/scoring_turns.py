"""How prompts that are scored and texts that run share an engine's time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ScoringTurns:
    """Lets texts run for as long as the last scored prompt took before the next one is scored.

    So prompts that are scored take about half of the time at most while texts run or wait, however
    long they are. ``text_seconds``: what texts have taken so far, their prompts and steps.
    """

    _steps: int = 0  # of texts when a prompt was last scored
    _texts_until: float = 0.0  # the text_seconds from which the next prompt may be scored

    def is_due(self, text_seconds: float, steps: int, *, running: bool) -> bool:
        """Return whether texts have had their time, and those that run a step at least."""
        return text_seconds >= self._texts_until and not (running and steps == self._steps)

    def scored(self, seconds: float, text_seconds: float, steps: int) -> None:
        """Take note of a prompt that took ``seconds``."""
        self._texts_until, self._steps = text_seconds + seconds, steps
