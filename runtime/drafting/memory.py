"""DraftMemory: what drafters learn while a bundle is open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from .acceptance import SourceAcceptance
from .costs import PassCosts
from .ngrams import NOTHING_KNOWN, KnownNGrams, NGramTables
from .policy import DraftPolicy


class DraftMemory:
    """N-grams of the texts written so far, costs of passes, and acceptance by drafter.

    A loaded bundle has one, which outlives calls and running batches; only the holder of the
    engines uses it. No text depends on it, but latency does: a client may infer from it what
    others generated, as with cached prefixes.
    """

    def __init__(self, known: Callable[[], KnownNGrams] = lambda: NOTHING_KNOWN) -> None:
        """``known`` returns the n-grams that the bundle has; the first use of `tables` calls it."""
        self._known = known
        self.costs = PassCosts()
        self._sources: dict[tuple[str, tuple[float, ...]], SourceAcceptance] = {}
        self._policies: dict[tuple[SourceAcceptance, ...], DraftPolicy] = {}

    def fresh(self) -> DraftMemory:
        """Return a memory that has learned nothing yet and has the same n-grams of the bundle."""
        return DraftMemory(self._known)

    @cached_property
    def tables(self) -> NGramTables:
        """The n-grams of texts. Raises BundleError if those of the bundle are not allowed."""
        return NGramTables(self._known())

    def source(
        self, source: str, priors: Sequence[float], draft_prior: float = 0.0
    ) -> SourceAcceptance:
        """Return the acceptance of the drafter ``source``, created on first use."""
        key = source, tuple(priors)
        if key not in self._sources:
            self._sources[key] = SourceAcceptance(source, priors, draft_prior)
        return self._sources[key]

    def policy(self, sources: Sequence[SourceAcceptance]) -> DraftPolicy:
        """Return the policy that chooses among these drafters, created on first use."""
        key = tuple(sources)
        if key not in self._policies:
            self._policies[key] = DraftPolicy(key, self.costs)
        return self._policies[key]
