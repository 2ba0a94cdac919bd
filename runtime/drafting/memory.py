"""DraftMemory: what drafts learn while a bundle is open."""

from __future__ import annotations

from .ngrams import NGramTables
from .policy import DraftPolicy, PassCosts


class DraftMemory:
    """N-grams of the texts written so far, costs of passes, and acceptance by drafter.

    A loaded bundle has one, which outlives calls and running batches; only the holder of the
    engines uses it. No text depends on it, but times do: who measures them may learn what others
    were told, as with kept prefixes.
    """

    def __init__(self) -> None:
        self.tables = NGramTables()
        self.costs = PassCosts()
        self._policies: dict[str, DraftPolicy] = {}

    def policy(self, source: str, draft_prior: float = 0.0) -> DraftPolicy:
        """Return the policy of the drafter ``source``, which is made on first use."""
        if source not in self._policies:
            self._policies[source] = DraftPolicy(source, self.costs, draft_prior)
        return self._policies[source]
