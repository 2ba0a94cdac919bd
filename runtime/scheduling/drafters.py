"""Drafters: the sources of guesses of the next tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from typing_extensions import override

from ..drafting.acceptance import Guesses, RowResults
from ..drafting.ngrams import LOOKUP_PRIORS, OWN_PRIORS, LookupIndex, NGramTable, NGramTables
from .running_request import Row


@dataclass(eq=False)
class RowDrafts:
    """The state of one row's drafts: its text, and their results.

    ``tokens`` are prompt and text, of which the drafters have learned the first ``learned``.
    """

    row: Row
    tokens: list[int]
    learned: int
    index: LookupIndex = field(default_factory=LookupIndex)
    results: dict[str, RowResults] = field(default_factory=dict)  # by source

    @classmethod
    def of(cls, row: Row) -> RowDrafts:
        """Begin with the row's prompt and its text so far."""
        prompt = row.request.prompt_token_ids
        return cls(row, [*prompt, *row.token_ids], len(prompt))

    def of_source(self, source: str) -> RowResults:
        """Return the results of drafts of ``source`` in this row."""
        return self.results.setdefault(source, RowResults())

    def follow(self) -> None:
        """Add the tokens that the row has accepted since."""
        self.tokens += self.row.token_ids[
            len(self.tokens) - len(self.row.request.prompt_token_ids) :
        ]


class Drafter(ABC):
    """Proposes tokens that may follow rows' texts; it never decides a text.

    ``source`` names it in figures. ``priors`` are the expected acceptance of its guesses, by class
    of evidence.
    """

    source: str
    priors: Sequence[float] = (0.5,)
    draft_prior = 0.0  # the cost of a draft step, in passes over one token, until it is measured

    @property
    def draft_steps(self) -> int:
        """The number of draft steps that it has run."""
        return 0

    def reach(self, row: Row, most: int) -> int:
        """Return how many tokens, up to ``most``, it may draft for the row."""
        return most

    @abstractmethod
    def propose(self, rows: Sequence[RowDrafts], most: int) -> list[Guesses]:
        """Return up to ``most`` tokens for each row, none if it has no guess."""

    def learn(self, row: RowDrafts) -> None:  # noqa: B027  (most drafters learn nothing)
        """Learn the row's accepted tokens from index ``row.learned`` on."""


def room_of(row: Row) -> int:
    """Return how many guesses the row can use: a pass writes one token more than it has guesses."""
    return row.request.max_tokens - len(row.token_ids) - 1


class OwnDrafter(Drafter):
    """Proposes what followed the same n-grams in earlier texts of these engines."""

    source = "own"
    priors = OWN_PRIORS

    def __init__(self, tables: NGramTables, *, per_client: bool) -> None:
        """Use one table per client, or the one that all clients share."""
        self._tables = tables
        self._per_client = per_client

    @override
    def propose(self, rows: Sequence[RowDrafts], most: int) -> list[Guesses]:
        return [self._table(row).propose(row.tokens, most) for row in rows]

    @override
    def learn(self, row: RowDrafts) -> None:
        self._table(row).count(row.tokens, row.learned)

    def _table(self, row: RowDrafts) -> NGramTable:
        if self._per_client:
            return self._tables.of_client(row.row.request.client)
        return self._tables.shared


class LookupDrafter(Drafter):
    """Proposes what followed an earlier occurrence of the last tokens in the row's own text."""

    source = "lookup"
    priors = LOOKUP_PRIORS

    @override
    def propose(self, rows: Sequence[RowDrafts], most: int) -> list[Guesses]:
        return [row.index.propose(row.tokens, most) for row in rows]
