"""Which drafter proposes, how many tokens, and whether drafts pay at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .acceptance import UNKNOWN, Guesses, RowResults, SourceAcceptance
from .costs import PassCosts

_LEAST_GAIN = 1.03
_STAYING = 1.02  # bonus for as many drafts as last time, because engines are bound for them
_CHOICES = (1, 2, 4, 7)  # numbers of drafts; few, because engines are bound for each
_SHARE = 0.02  # share of all passes that drafts may cost
_CREDIT = 2.0  # passes that they may cost beyond that at first, and at once after a pause
_MOST_SPARE = 16.0  # most passes that gains may save up for passes that gain nothing


@dataclass(frozen=True)
class Offer:
    """What a drafter offers a row: the evidence for each guess, and the results of earlier ones.

    A drafter that runs layers has not guessed yet: its evidence is UNKNOWN for each token that it
    may draft.
    """

    evidence: Sequence[int]
    results: RowResults


RowOffers = Mapping[int, Offer]
"""The offers to one row, by the drafter's index in the text of the draft option."""


@dataclass(frozen=True)
class Choice:
    """What rows draft in a pass: up to ``count`` tokens each.

    ``sources`` has the index of each row's drafter, or None. If the drafter runs layers,
    `DraftPolicy.goes_on` decides the number of tokens instead.
    """

    count: int = 0
    sources: Sequence[int | None] = ()


class DraftPolicy:
    """Chooses in each pass the drafter and the number of tokens with the highest expected gain.

    The gain is the number of tokens that a pass is expected to write ÷ its cost: with k guesses,
    (1 + Σ expected accepted) ÷ (1 + further tokens + k draft steps). A guess is expected to be
    accepted as often as earlier guesses of its drafter with the same evidence. The costs of further
    tokens and of draft steps are measured.

    Worked: n-grams offer two guesses accepted with 0.5 each, ``ends:3`` any number accepted with
    0.9 at 0.2 per step; a further token costs 0.04. Two n-grams yield 1.75 tokens for 1.08 (1.62),
    four steps 4.10 for 1.96 (2.09), seven 5.70 for 2.68 (2.13): layers draft seven. In a row whose
    n-grams are accepted with 0.95, seven yield 6.73 for 1.28.

    Layers give the probability of each of their guesses. They go on drafting, and a pass checks
    their tokens, as long as the chance that the next token is accepted exceeds its cost times that
    gain.

    Nothing is drafted for a row whose best gain is below 1.03. After 128 passes without a checked
    guess, a drafter's acceptance is taken to be 0.8, and it drafts again where that would gain.

    Drafts have a budget: two passes over one token, 2 % of every further pass, and what they gain,
    up to 16 passes. It pays for what a pass costs beyond its tokens, including the search for
    guesses. Nothing is drafted that may cost more than is left. If that does not cover even one
    draft, drafting pauses until two passes are left again, because the search alone would use up
    what is added; passes without drafts are measured after the pause. So all trials together cost
    a user at most 2 % and two passes. The budget never owes more than two passes, because a garbage
    collection may take dozens of a small model.
    """

    def __init__(self, sources: Sequence[SourceAcceptance], costs: PassCosts) -> None:
        self.sources = sources
        self._costs = costs
        self._spare = _CREDIT  # passes over one token per row that drafts may cost
        self._is_pausing = False
        self._gain = 1.0  # the expected gain of the last choice
        self._last = 0  # the number of drafts in the last choice

    def pauses(self) -> bool:
        """Return whether drafting pauses in the next pass, and count that pass."""
        if not self._is_pausing:
            return False
        self._spare += _SHARE
        if self._spare >= _CREDIT:
            self._is_pausing = False
            self._costs.measure_plain_again()
        return True

    def count_pass(self, num_rows: int, written: int, seconds: float) -> None:
        """Count a pass for which guesses were searched: the tokens it wrote, and its time.

        If it fed no guess, or took long for other reasons, ``written`` counts the accepted guesses
        only, and ``seconds`` the search for them.
        """
        for source in self.sources:
            source.count_pass()
        cost = self._costs.in_plain_passes(num_rows, seconds)
        if cost is not None:
            spare = self._spare + _SHARE + written / num_rows - cost
            self._spare = max(-_CREDIT, min(spare, _MOST_SPARE))
            self._is_pausing |= self._spare < 0

    def choose(self, rows: Sequence[RowOffers], num_rows: int) -> Choice:
        """Return what ``rows`` draft in a pass of ``num_rows`` rows, including others.

        Rows may use different n-gram drafters, and at most one drafter that runs layers.
        """
        expected = [
            {
                source: self.sources[source].expected(offer.evidence, offer.results)
                for source, offer in offers.items()
            }
            for offers in rows
        ]
        free = [index for index, one in enumerate(self.sources) if not one.runs_layers]
        layers = [index for index, one in enumerate(self.sources) if one.runs_layers]
        highest, best, is_covered = 0.0, Choice(), True
        self._gain = 1.0
        for paid in (None, *layers):
            candidates = free if paid is None else [*free, paid]
            longest = max(
                (len(row[s]) - 1 for row in expected for s in candidates if s in row), default=0
            )
            costs = self._pass_costs(paid, num_rows, longest)
            covered = [(count, cost) for count, cost in costs if cost - 1 <= self._spare]
            is_covered &= bool(covered) or not costs
            for count, cost in covered:
                sources, held = _assigned(expected, candidates, count)
                gain = (num_rows + held) / num_rows / cost
                if gain < _LEAST_GAIN or (paid is not None and paid not in sources):
                    continue
                stays = _STAYING if count == self._last else 1.0
                if gain * stays > highest:
                    highest, best, self._gain = gain * stays, Choice(count, sources), gain
        self._last = best.count or self._last
        self._is_pausing |= not is_covered and not best.count
        return best

    def goes_on(self, source: int, drafted: Sequence[Guesses], num_rows: int) -> bool:
        """Return whether layers should draft a further token after ``drafted``.

        ``drafted`` has the guesses, equally many, of each row that can use a further one. A row's
        chance is that all of its guesses are accepted times the drafter's acceptance rate. The
        chances of all rows are summed, because one draft step serves them together.
        """
        ahead = len(drafted[0].tokens)
        step = self._step_cost(source, num_rows)
        further = self._costs.further(num_rows, ahead + 1)
        if further + (ahead + 1) * step > self._spare:
            return False
        cost = further - self._costs.further(num_rows, ahead) + step
        chance = self._held(source, drafted, ahead) * self.sources[source].share(UNKNOWN)
        return chance > self._gain * cost * num_rows

    def worth_checking(self, source: int, drafted: Sequence[Guesses], num_rows: int) -> int:
        """Return how many of each row's drafted tokens a pass should check."""
        best, most, held = 0, 0.0, 0.0
        for count in range(1, max(len(guesses.tokens) for guesses in drafted) + 1):
            held += self._held(source, drafted, count)
            worth = held - self._gain * self._costs.further(num_rows, count) * num_rows
            if worth > most:
                best, most = count, worth
        return best

    def _pass_costs(self, paid: int | None, num_rows: int, most: int) -> list[tuple[int, float]]:
        """Return possible numbers of drafts up to ``most``, each with the cost of its pass.

        ``paid``: the drafter that runs layers for them, if any.
        """
        step = 0.0 if paid is None else self._step_cost(paid, num_rows)
        return [
            (count, 1 + self._costs.further(num_rows, count) + count * step)
            for count in _CHOICES
            if count <= most
        ]

    def _step_cost(self, source: int, num_rows: int) -> float:
        """Return what a draft step of a drafter costs, in passes over one token."""
        one = self.sources[source]
        return self._costs.draft_cost(one.source, num_rows, one.draft_prior)

    def _held(self, source: int, drafted: Sequence[Guesses], count: int) -> float:
        """Return how many of the rows' ``count``-th tokens are expected to be accepted."""
        one = self.sources[source]
        return sum(
            one.chance(guesses.evidence[:count])
            for guesses in drafted
            if len(guesses.tokens) >= count
        )


def _assigned(
    rows: Sequence[Mapping[int, Sequence[float]]], candidates: Sequence[int], count: int
) -> tuple[list[int | None], float]:
    """Return each row's drafter with the most expected tokens, and the sum of these tokens.

    The first of equal drafters is taken. ``rows`` have, by drafter, the tokens expected to be
    accepted of 0, 1, … guesses.
    """
    sources: list[int | None] = []
    total = 0.0
    for row in rows:
        chosen, most = None, 0.0
        for source in candidates:
            sums = row.get(source)
            if sums is not None and (held := sums[min(count, len(sums) - 1)]) > most:
                chosen, most = source, held
        sources.append(chosen)
        total += most
    return sources, total
