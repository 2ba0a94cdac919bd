"""Chain: the guesses that a row feeds in one pass, and who made them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from .acceptance import Guesses


@dataclass(frozen=True)
class Link:
    """Consecutive guesses of one drafter.

    ``source``: the drafter's index in the text of the draft option. ``chances``: that the first
    1, 2, … of them are all accepted, if all guesses before the link are.
    """

    source: int
    guesses: Guesses
    chances: Sequence[float] = ()


@dataclass(frozen=True)
class Chain:
    """What a row feeds in a pass: guesses of one drafter, or of layers and then of n-grams.

    Worked: layers guess ``a b`` with the chances 0.8 and 0.4, and an n-gram says that ``c`` follows
    with 0.5. The chances of the chain are 0.8, 0.4 and 0.2. If ``a b`` are accepted and ``c`` is
    not, the layers had two guesses of two accepted, and the n-grams none of one.
    """

    links: tuple[Link, ...] = ()

    @property
    def tokens(self) -> list[int]:
        """All guessed tokens."""
        return [token for link in self.links for token in link.guesses.tokens]

    @property
    def chances(self) -> list[float]:
        """The chances that the first 1, 2, … tokens are all accepted."""
        chances: list[float] = []
        for link in self.links:
            before = chances[-1] if chances else 1.0
            chances += [before * chance for chance in link.chances]
        return chances

    def first(self, count: int) -> Chain:
        """Return the first ``count`` guesses."""
        links = []
        for link in self.links:
            guesses = link.guesses.first(count)
            links.append(replace(link, guesses=guesses, chances=link.chances[:count]))
            count -= len(guesses.tokens)
        return Chain(tuple(links))

    def results(self, checked: int, accepted: int) -> Iterator[tuple[int, Sequence[int], int]]:
        """Yield each source whose guesses were checked, their evidence, and how many were accepted.

        ``checked`` and ``accepted`` count the first guesses of the chain.
        """
        for link in self.links:
            evidence = link.guesses.evidence[:checked]
            if not evidence:
                return
            yield link.source, evidence, min(accepted, len(evidence))
            checked, accepted = checked - len(evidence), max(0, accepted - len(evidence))
