"""How often guesses hold: of each drafter by the evidence for a guess, and in one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_IMAGINED = 4.0  # tries at the prior that each class of evidence begins with
_MEMORY = 0.99  # of a class, per token that was tried
_TRY_MEMORY = 0.5  # where guesses were only tried: old results must not outweigh the few tries
_ROW_IMAGINED = 4.0  # tokens that held as expected, with which a row begins
_MOST_SHARE = 0.98  # a row that was lucky may be wrong next


@dataclass(frozen=True)
class Guesses:
    """Tokens that a drafter proposes, and the class of evidence for each, a small number.

    The drafter's ``priors`` has an entry for each class.
    """

    tokens: Sequence[int] = ()
    evidence: Sequence[int] = ()

    @classmethod
    def alike(cls, tokens: Sequence[int]) -> Guesses:
        """Return guesses of one class."""
        return cls(tokens, (0,) * len(tokens))

    def first(self, count: int) -> Guesses:
        """Return the first ``count`` guesses."""
        return Guesses(self.tokens[:count], self.evidence[:count])


@dataclass
class RowResults:
    """Guesses of one drafter that held in one row, beside those that were expected to."""

    expected: float = 0.0
    held: float = 0.0

    @property
    def factor(self) -> float:
        """By how much the row's guesses hold more often than expected.

        Worked: 6 were expected to hold and 1 did: (1 + 4) / (6 + 4) = 0.5.
        """
        return (self.held + _ROW_IMAGINED) / (self.expected + _ROW_IMAGINED)


class SourceAcceptance:
    """The share of one drafter's guesses that held, over all rows, by class of evidence.

    A class begins with 4 imagined tries at its prior, and recent tries count most.
    """

    def __init__(self, source: str, priors: Sequence[float], draft_prior: float = 0.0) -> None:
        """``draft_prior``: a draft step's cost, in passes over one token, until it is measured."""
        self.source = source
        self.draft_prior = draft_prior
        self._tried = [_IMAGINED] * len(priors)
        self._held = [_IMAGINED * prior for prior in priors]

    @property
    def runs_layers(self) -> bool:
        """True if guesses are drafted by layers, a step for each."""
        return self.draft_prior > 0

    def share(self, evidence: int) -> float:
        """Return the share of guesses of this class that held."""
        return self._held[evidence] / self._tried[evidence]

    def expected(self, evidence: Sequence[int], row: RowResults) -> list[float]:
        """Return how many of the first 0, 1, … guesses are expected to hold in a row.

        Worked: classes that hold with 0.8 and 0.5, in a new row: 0, 0.8 and 0.8 + 0.8 · 0.5 = 1.2.
        """
        factor, power, total = row.factor, 1.0, 0.0
        sums = [0.0]
        for one in evidence:
            power *= min(_MOST_SHARE, self.share(one) * factor)
            total += power
            sums.append(total)
        return sums

    def add(
        self, evidence: Sequence[int], held: int, row: RowResults, *, is_try: bool = False
    ) -> None:
        """Count guesses that were checked: of ``evidence`` the first ``held`` held.

        ``is_try``: they were not expected to gain.
        """
        memory = _TRY_MEMORY if is_try else _MEMORY
        for index, one in enumerate(evidence):
            row.expected += self.share(one)
            self._tried[one] = self._tried[one] * memory + 1.0
            self._held[one] = self._held[one] * memory + (index < held)
        row.held += held
