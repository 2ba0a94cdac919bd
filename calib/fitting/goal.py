"""Goals of a fit: a speed-up, or a bound on the loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ...engines.errors import SkipDecError, UsageError
from ...runtime.schedule.text import format_schedule
from .loss import ScoredSchedule

SpeedupOf = Literal["call", "steps", "mixed"]
SPEEDUP: SpeedupOf = "call"  # the default meaning of a speed-up
SPEEDUP_NAMES: Mapping[SpeedupOf, str] = {
    "call": "the whole call",
    "steps": "the steps after the prompt",
    "mixed": "the steps of {rows} rows in flight",
}


class Goal(Protocol):
    """Orders candidates scored on all examples; their ``speedup`` is the expected one."""

    def ranked(
        self, candidates: Sequence[ScoredSchedule], full_loss: float, *, is_exhaustive: bool
    ) -> list[ScoredSchedule]:
        """Return those that reach the goal, best first.

        If there are none, raises SkipDecError with the nearest miss. Unless ``is_exhaustive``, a
        search may find schedules beyond ``candidates``.
        """


@dataclass(frozen=True)
class TargetSpeedup:
    """At least this speed-up, with the lowest possible loss.

    The speed-up is of whole calls, prompts included, unless the fit's ``speedup_of`` differs.
    """

    value: float

    def __post_init__(self) -> None:
        if not 1 < self.value < math.inf:
            raise UsageError("--target-speedup", f"is {self.value}; allowed: above 1, e.g. 1.5")

    def ranked(
        self, candidates: Sequence[ScoredSchedule], full_loss: float, *, is_exhaustive: bool
    ) -> list[ScoredSchedule]:
        """Return candidates that are fast enough, by loss."""
        fitting = [entry for entry in candidates if entry.speedup >= self.value]
        if not fitting:
            nearest = max(candidates, key=lambda entry: entry.speedup)
            came = f"is expected to reach {nearest.speedup:.3f}×"
            raise self.missed(nearest, came, is_exhaustive=is_exhaustive)
        return sorted(fitting, key=lambda entry: entry.mean_loss)

    def missed(self, nearest: ScoredSchedule, came: str, *, is_exhaustive: bool) -> SkipDecError:
        """Return the error for an unreached speed-up; ``came`` describes the nearest candidate."""
        return SkipDecError(
            f"--target-speedup {self.value:g}",
            f"can't be met: the nearest, {format_schedule(nearest.schedule)}, {came}, at a loss of "
            f"{nearest.mean_loss:.4f} per token; ask for less, or allow more --decay, --placement "
            f"and --warmup{_more_budget(is_exhaustive)}",
        )


@dataclass(frozen=True)
class MaxLoss:
    """The fastest with at most this many nats per token, or this many above full depth."""

    value: float
    is_relative: bool

    def __post_init__(self) -> None:
        if not 0 <= self.value < math.inf:
            raise UsageError("--max-loss", f"is {self.value}; allowed: 0 or more")

    @classmethod
    def parse(cls, text: str) -> MaxLoss:
        """Parse ``1.9``, nats per token, or ``+0.05``, above the loss at full depth."""
        try:
            value = float(text)
        except ValueError:
            raise UsageError(
                "--max-loss", f"is {text!r}; allowed: nats per token, e.g. 1.9, or +0.05 over full"
            ) from None
        return cls(value, text.strip().startswith("+"))

    def ranked(
        self, candidates: Sequence[ScoredSchedule], full_loss: float, *, is_exhaustive: bool
    ) -> list[ScoredSchedule]:
        """Return candidates within the bound, fastest first."""
        bound = self.value + full_loss * self.is_relative
        fitting = [entry for entry in candidates if entry.mean_loss <= bound]
        if not fitting:
            nearest = min(candidates, key=lambda entry: entry.mean_loss)
            raise SkipDecError(
                f"--max-loss {'+' * self.is_relative}{self.value:g}",
                f"can't be met: the lowest loss, {nearest.mean_loss:.4f} nats per token, has "
                f"{format_schedule(nearest.schedule)}; full depth has {full_loss:.4f}; "
                f"ask for a larger one{_more_budget(is_exhaustive)}",
            )
        return sorted(fitting, key=lambda entry: (-entry.speedup, entry.mean_loss))


def _more_budget(is_exhaustive: bool) -> str:
    return "" if is_exhaustive else ", or search more schedules with a larger --budget"
