"""How often guesses are accepted: per drafter by the evidence for a guess, and in one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

_IMAGINED = 4.0  # pseudo-counts at the prior with which each class of evidence begins
_IMAGINED_OF_LAYERS = 16.0  # their priors are better, and a few failures must not end drafts
_MEMORY = 0.99  # decay of a class's counts per checked token
_STALE = 128  # passes without a checked guess after which a drafter begins anew
_RETRIED, _HOPE = 1.0, 0.8  # pseudo-counts then, few, so that failures end it soon; and their share
_ROW_IMAGINED = 4.0  # tokens that count as accepted as expected when a row begins
_MOST_SHARE = 0.98  # a row that was lucky may be wrong next
_CONFIDENCES = 8  # classes of the probability that a draft gives its guess

UNKNOWN = 0
"""The class of a guess that layers have not made yet; it counts all of their checked guesses."""

LAYER_PRIORS = (0.5, *((one + 0.5) / _CONFIDENCES for one in range(_CONFIDENCES)))
"""Expected acceptance of layers' guesses: of any guess, then by `confidence_class`."""


def confidence_class(probability: float) -> int:
    """Return the class of a guess to which the draft gives ``probability``.

    >>> confidence_class(0.1), confidence_class(0.5), confidence_class(1.0)
    (1, 5, 8)
    """
    return 1 + int(min(probability, 0.999) * _CONFIDENCES) if probability > 0 else 1


@dataclass(frozen=True)
class Guesses:
    """Tokens that a drafter proposes, and the class of evidence for each, a small number.

    The drafter's ``priors`` has an entry for each class.
    """

    tokens: Sequence[int] = ()
    evidence: Sequence[int] = ()

    def first(self, count: int) -> Guesses:
        """Return the first ``count`` guesses."""
        return Guesses(self.tokens[:count], self.evidence[:count])


@dataclass
class RowResults:
    """How many guesses were accepted in one row (``held``), and how many were expected to be."""

    expected: float = 0.0
    held: float = 0.0

    @property
    def factor(self) -> float:
        """How many times as often as expected the row's guesses are accepted.

        Worked: 6 were expected to be accepted and 1 was: (1 + 4) / (6 + 4) = 0.5.
        """
        return (self.held + _ROW_IMAGINED) / (self.expected + _ROW_IMAGINED)


class SourceAcceptance:
    """The acceptance rate of one drafter's guesses, over all rows, by class of evidence.

    A class begins with a pseudo-count of 4 at its prior, or 16 for layers' guesses; recent guesses
    count most. After 128 passes without a checked guess, everything learned is forgotten and each
    class begins with a pseudo-count of 1 at 0.8, so that the drafter is tried again. A single class
    of layers' guesses that had none checked for as long begins with a pseudo-count of 1 at its
    prior.
    """

    def __init__(self, source: str, priors: Sequence[float], draft_prior: float = 0.0) -> None:
        """``draft_prior``: a draft step's cost, in passes over one token, until it is measured."""
        self.source = source
        self.draft_prior = draft_prior
        self._priors = priors
        self._begin(_IMAGINED_OF_LAYERS if self.runs_layers else _IMAGINED, priors)

    @property
    def runs_layers(self) -> bool:
        """True if guesses are drafted by layers, a step for each."""
        return self.draft_prior > 0

    def share(self, evidence: int) -> float:
        """Return the share of guesses of this class that were accepted."""
        return self._held[evidence] / self._tried[evidence]

    def expected(self, evidence: Sequence[int], row: RowResults) -> list[float]:
        """Return how many of the first 0, 1, … guesses are expected to be accepted in a row.

        N-grams suit some rows and not others, so the row's own results count. Layers' guesses are
        about as good in all rows, and a few wrong ones would end drafts that pay.

        Worked: classes accepted with 0.8 and 0.5, in a new row: 0, 0.8 and 0.8 + 0.8 · 0.5 = 1.2.
        """
        factor, power, total = 1.0 if self.runs_layers else row.factor, 1.0, 0.0
        sums = [0.0]
        for one in evidence:
            power *= min(_MOST_SHARE, self.share(one) * factor)
            total += power
            sums.append(total)
        return sums

    def chance(self, evidence: Sequence[int]) -> float:
        """Return the chance that guesses of these classes are all accepted.

        Worked: classes accepted with 0.8 and 0.5: 0.4.
        """
        return prod(map(self.share, evidence))

    def add(self, evidence: Sequence[int], held: int, row: RowResults) -> None:
        """Count checked guesses, by class; the first ``held`` of them were accepted."""
        self._idle = 0
        for index, one in enumerate(evidence):
            row.expected += self.share(one)
            for counted in {UNKNOWN, one} if self.runs_layers else {one}:
                self._unchecked[counted] = 0
                self._tried[counted] = self._tried[counted] * _MEMORY + 1.0
                self._held[counted] = self._held[counted] * _MEMORY + (index < held)
        row.held += held

    def count_pass(self) -> None:
        """Count a pass, whether or not it checked guesses."""
        self._idle += 1
        if self._idle >= _STALE:
            self._begin(_RETRIED, [_HOPE] * len(self._priors))
        elif self.runs_layers:
            self._forget_unchecked()

    def _forget_unchecked(self) -> None:
        """Let classes without a checked guess for long begin anew: they did not seem to pay."""
        for one, prior in enumerate(self._priors):
            self._unchecked[one] += 1
            if self._unchecked[one] >= _STALE:
                self._unchecked[one] = 0
                self._tried[one], self._held[one] = _RETRIED, _RETRIED * prior

    def _begin(self, imagined: float, priors: Sequence[float]) -> None:
        self._tried = [imagined] * len(priors)
        self._held = [imagined * prior for prior in priors]
        self._idle = 0  # passes since the last checked guess
        self._unchecked = [0] * len(priors)  # the same for each class
