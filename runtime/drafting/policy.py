"""Which drafter proposes, how many tokens, and whether drafts pay at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .acceptance import RowResults, SourceAcceptance
from .config import MAX_DRAFT_TOKENS
from .costs import PassCosts

_LEAST_GAIN = 1.03
_KEPT_GAIN = 0.98  # of the best: with that the number of drafts stays, and engines stay bound
_CHOICES = (1, 2, 4, 7)  # numbers of drafts: each is measured on its own, and bound on its own
_TRY_TOKENS = 2
_FIRST_WAIT, _LONGEST_WAIT = 16, 256  # passes between two tries
_SHARE = 0.02  # of all passes, that drafts may cost
_FIRST_CREDIT = 2.0  # passes that they may cost beyond that, once
_CREDIT = 0.5  # passes that they may cost at once behind a pause
_MOST_SPARE = 4.0  # of what they gained, kept for passes that gain nothing


@dataclass(frozen=True)
class Offer:
    """What a drafter offers a row: the evidence for each guess, and what came of earlier ones.

    A drafter that runs layers has not guessed yet: its evidence is 0 for each token it may draft.
    """

    evidence: Sequence[int]
    results: RowResults


RowOffers = Mapping[int, Offer]
"""The offers to one row, by the drafter's place in the text of the draft option."""


@dataclass(frozen=True)
class Choice:
    """What rows draft in a pass: up to ``count`` tokens, each of the drafter in ``sources``.

    ``sources`` has a place for each row: that of its drafter, or None.
    """

    count: int = 0
    sources: Sequence[int | None] = ()
    is_try: bool = False


@dataclass
class _Tries:
    """When a drafter is tried whose guesses are not expected to gain."""

    wait: int = _FIRST_WAIT
    left: int = _FIRST_WAIT

    def drafted(self, *, is_try: bool) -> None:
        self.wait = min(2 * self.wait, _LONGEST_WAIT) if is_try else _FIRST_WAIT
        self.left = self.wait


class DraftPolicy:
    """Chooses at each place the drafter and the number of tokens with the highest expected gain.

    The gain is the number of tokens that a pass is expected to write ÷ its cost. A guess is
    expected to hold as often as earlier ones of its drafter with the same evidence; draft steps
    and passes cost what was measured.

    Worked: n-grams offer two guesses that hold with 0.5 each, ``ends:3`` any number that hold with
    0.9 and cost 0.2 a step; passes over 1, 2, 3, 5, 8 tokens cost 1, 1.04, 1.08, 1.16, 1.28. Two
    n-grams yield 1.75 tokens for 1.08 (1.62), four steps 4.10 for 1.96 (2.09), seven 5.70 for 2.68
    (2.13): layers draft seven. At a place where n-grams hold with 0.95, seven yield 6.73 for 1.28.

    Nothing is drafted at a place whose best gain is below 1.03. A drafter that has not drafted for
    16 passes, then 32, … at most 256, drafts two tokens to be tried, if these could gain at all.

    Drafts have a budget: two passes over one token, 2 % of every further pass, and what they gain,
    up to 4 passes. What a pass cost beyond its tokens, the search for guesses included, is paid out
    of it. Nothing is drafted that may cost more than is left. Where it is used up, nothing is done
    for drafts until it is half a pass again, and passes without drafts are measured then. So all
    that is tried costs a user at most 2 % and two passes.
    """

    def __init__(self, sources: Sequence[SourceAcceptance], costs: PassCosts) -> None:
        self.sources = sources
        self._costs = costs
        self._tries = [_Tries() for _ in sources]
        self._spare = _FIRST_CREDIT  # passes over one token per row that drafts may cost
        self._is_pausing = False
        self._last = 0  # the number of drafts that was chosen last

    def pauses(self) -> bool:
        """Return whether nothing is to be done for drafts in the next pass, and count it."""
        if not self._is_pausing:
            return False
        self._spare += _SHARE
        if self._spare >= _CREDIT:
            self._is_pausing = False
            self._costs.measure_plain_again()
        return True

    def choose(self, rows: Sequence[RowOffers], num_rows: int) -> Choice:
        """Return what ``rows`` draft in a pass of ``num_rows``, the others included."""
        passes = self._costs.pass_costs(num_rows, MAX_DRAFT_TOKENS + 1)
        steps = [
            self._costs.draft_cost(one.source, num_rows, one.draft_prior)
            if one.runs_layers
            else 0.0
            for one in self.sources
        ]
        tried = self._overdue(rows, num_rows, passes, steps)
        if tried is not None:
            return tried
        expected = [
            {
                source: self.sources[source].expected(offer.evidence, offer.results)
                for source, offer in offers.items()
            }
            for offers in rows
        ]
        return self._best(expected, num_rows, passes, steps)

    def count_pass(self, num_rows: int, written: int, seconds: float) -> None:
        """Count a pass for which guesses were looked for: its tokens, and all of its time."""
        self._count(num_rows, seconds, written / num_rows)

    def count_search(self, num_rows: int, held: int, seconds: float) -> None:
        """Count a pass that took long for other reasons: its search, and the guesses that held."""
        self._count(num_rows, seconds, held / num_rows)

    def _count(self, num_rows: int, seconds: float, earned: float) -> None:
        for tries in self._tries:
            tries.left = max(0, tries.left - 1)
        cost = self._costs.in_plain_passes(num_rows, seconds)
        if cost is not None:
            self._spare = min(self._spare + _SHARE + earned - cost, _MOST_SPARE)
            self._is_pausing = self._spare < 0

    def _affords(self, cost: float) -> bool:
        """Return whether a pass of ``cost`` may be lost."""
        return cost - 1 <= self._spare

    def _overdue(
        self,
        rows: Sequence[RowOffers],
        num_rows: int,
        passes: Sequence[float],
        steps: Sequence[float],
    ) -> Choice | None:
        """Return a try of the first drafter that is due and offers something."""
        for source, tries in enumerate(self._tries):
            if tries.left > 0:
                continue
            offered = [len(one[source].evidence) if source in one else 0 for one in rows]
            count = min(_TRY_TOKENS, max(offered, default=0))
            drafting = sum(1 for one in offered if one)
            most = (num_rows + drafting * count) / num_rows
            cost = passes[count] + count * steps[source]
            if count == 0 or most < _LEAST_GAIN * cost or not self._affords(cost):
                continue
            tries.drafted(is_try=True)
            return Choice(count, [source if one else None for one in offered], is_try=True)
        return None

    def _best(
        self,
        rows: Sequence[Mapping[int, Sequence[float]]],
        num_rows: int,
        passes: Sequence[float],
        steps: Sequence[float],
    ) -> Choice:
        """Return the choice of the highest gain, from ``expected`` tokens of each row's drafters.

        One with as many tokens as the last is kept where its gain is nearly the highest.
        """
        found: list[tuple[float, Choice]] = []
        free = [source for source, one in enumerate(self.sources) if not one.runs_layers]
        for paid in (None, *(source for source in range(len(steps)) if source not in free)):
            asked = free if paid is None else [*free, paid]
            longest = max((len(one[s]) - 1 for one in rows for s in asked if s in one), default=0)
            for count in _CHOICES:
                if count > longest:
                    break
                sources, held = _assigned(rows, asked, count)
                if paid is not None and paid not in sources:
                    continue
                cost = passes[count] + (0.0 if paid is None else count * steps[paid])
                gain = (num_rows + held) / num_rows / cost
                if gain >= _LEAST_GAIN and self._affords(cost):
                    found.append((gain, Choice(count, sources)))
        if not found:
            return Choice()
        gain, best = max(found, key=lambda one: one[0])
        alike = [one for one in found if one[1].count == self._last]
        if alike and (last := max(alike, key=lambda one: one[0]))[0] >= _KEPT_GAIN * gain:
            best = last[1]
        self._last = best.count
        for source in {one for one in best.sources if one is not None}:
            self._tries[source].drafted(is_try=False)
        return best


def _assigned(
    rows: Sequence[Mapping[int, Sequence[float]]], asked: Sequence[int], count: int
) -> tuple[list[int | None], float]:
    """Return each row's drafter with the most expected tokens, and the sum of these tokens.

    Of equal ones the first is taken. ``rows`` have the tokens expected of 0, 1, … guesses.
    """
    sources: list[int | None] = []
    total = 0.0
    for row in rows:
        chosen, most = None, 0.0
        for source in asked:
            sums = row.get(source)
            if sums is not None and (held := sums[min(count, len(sums) - 1)]) > most:
                chosen, most = source, held
        sources.append(chosen)
        total += most
    return sources, total
