"""How many tokens to draft: what passes cost, how often drafts hold, and when to stop drafting."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from .config import MAX_DRAFT_TOKENS

_WINDOW = 15  # passes whose mean is a cost, but for the slowest of them
_LEAST = 3  # passes before a cost counts as measured
_LEAST_SECONDS = 1e-9
_STALE = 256  # passes, behind which a cost that was not measured again counts for nothing
_REFRESH = 256  # passes with drafts, behind which a few without are measured again
_PLAIN = 4  # so few: the first finds everything cold
_PRIOR_SLOPE = 0.04  # a row's further token, in steps of one row, before it was measured
_IMAGINED = 8.0  # tries at the engine's acceptance that a row begins with
_MEMORY = 0.99  # of the engine's acceptance, per cycle with drafts
_TRY_MEMORY = 0.5  # while drafts are off: old results must not outweigh the few tries
_LEAST_GAIN = 1.03
_KEPT_GAIN = 0.98  # of the best: with that the number of drafts stays, and engines stay bound
_CHOICES = (0, 1, 2, 4, 7)  # numbers of drafts: each is measured on its own, and bound on its own
_TRY_TOKENS = 2
_FIRST_WAIT, _LONGEST_WAIT = 16, 256  # passes between two tries while drafts are off


class PassCosts:
    """Measured seconds of passes, and of draft steps, by the number of rows.

    A pass takes as long as all that is done for its tokens, draft steps aside. Rows fall into the
    classes 1, 2, 4, 8, …; a cost is the mean of the last 15 measured ones without the slowest. It
    is forgotten 256 passes after the last of them, so that what looked slow once is tried again.
    """

    def __init__(self) -> None:
        self._passes: dict[tuple[int, int], _Seconds] = defaultdict(_Seconds)
        self._drafts: dict[tuple[str, int], _Seconds] = defaultdict(_Seconds)
        self._count: dict[int, int] = defaultdict(int)  # passes by class
        self._plain: dict[int, int] = defaultdict(int)  # the last one over one token, of them
        self._plain_left: dict[int, int] = defaultdict(lambda: _PLAIN)  # wanted now, by class
        self.draft_seconds = 0.0  # of all draft steps

    def add_pass(self, rows: int, tokens: int, seconds: float) -> None:
        """Add a pass whose longest row fed ``tokens`` tokens."""
        rows = _row_class(rows)
        self._count[rows] += 1
        self._passes[rows, tokens].add(seconds, self._count[rows])
        if tokens == 1:
            self._plain[rows] = self._count[rows]
            self._plain_left[rows] = max(0, self._plain_left[rows] - 1)
        elif self._count[rows] - self._plain[rows] >= _REFRESH:
            self._plain_left[rows] = _PLAIN

    def add_draft(self, source: str, rows: int, seconds: float) -> None:
        """Add a step of a drafter that runs layers."""
        self.draft_seconds += seconds
        rows = _row_class(rows)
        self._drafts[source, rows].add(seconds, self._count[rows])

    def wants_plain(self, rows: int) -> bool:
        """Return whether a pass of one token per row should be measured now."""
        return self._plain_left[_row_class(rows)] > 0

    def pass_costs(self, rows: int, most: int) -> list[float]:
        """Return what passes over 1 to ``most`` tokens per row cost, in passes over one each.

        What was not measured costs as much as the next longer pass that was, and at most 4 % of a
        step more for each token of a row than the next shorter one.
        """
        rows = _row_class(rows)
        plain, count = self._passes[rows, 1].cost, self._count[rows]
        costs: list[float | None] = [1.0]
        for tokens in range(2, max(most, MAX_DRAFT_TOKENS + 1) + 1):
            times = self._passes.get((rows, tokens))
            if plain is None or times is None or times.cost is None or count - times.last >= _STALE:
                costs.append(None)
            else:
                costs.append(times.cost / plain)
        return _without_gaps(costs, _PRIOR_SLOPE * rows)[:most]

    def draft_cost(self, source: str, rows: int, prior: float) -> float:
        """Return the cost of a draft step, in passes over one token; ``prior`` until measured."""
        rows = _row_class(rows)
        plain, measured = self._passes[rows, 1].cost, self._drafts[source, rows].cost
        return prior if plain is None or measured is None else measured / plain


class _Seconds:
    """The last measured times of one kind of pass, and the number of the last pass among them."""

    __slots__ = ("_times", "cost", "last")

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_WINDOW)
        self.cost: float | None = None  # None until a few were measured
        self.last = 0

    def add(self, seconds: float, count: int) -> None:
        """Add a time of pass ``count``; after a long pause the earlier ones are forgotten."""
        if count - self.last >= _STALE:
            self._times.clear()
        self.last = count
        self._times.append(max(seconds, _LEAST_SECONDS))
        # Not the median: passes that bind engines or find their data cold are paid for, too.
        others = len(self._times) - 1
        self.cost = (sum(self._times) - max(self._times)) / others if others + 1 >= _LEAST else None


def _without_gaps(costs: Sequence[float | None], slope: float) -> list[float]:
    """Fill in unknown costs between their neighbours; a pass never costs more than its tokens.

    >>> _without_gaps([1.0, None, None, 1.1, None], 0.25)
    [1.0, 1.1, 1.1, 1.1, 1.35]
    """
    filled: list[float] = []
    for tokens, cost in enumerate(costs, start=1):
        filled.append(min(filled[-1] + slope, float(tokens)) if cost is None else cost)
    for place in range(len(costs) - 2, 0, -1):
        if costs[place] is None:
            filled[place] = min(filled[place], filled[place + 1])
    return filled


def _row_class(rows: int) -> int:
    """Return the power of two that is nearest from above."""
    return 1 << (rows - 1).bit_length()


@dataclass
class Acceptance:
    """Drafted tokens of one row and drafter that were checked, and those that were right."""

    tried: float = 0.0
    held: float = 0.0

    def add(self, tried: float, held: float) -> None:
        """Count a pass; tokens behind the first wrong one were not checked."""
        self.tried += tried
        self.held += held

    def drawn_towards(self, share: float) -> float:
        """Return the share that held, as if 8 more had been tried and ``share`` of them held."""
        return (self.held + _IMAGINED * share) / (self.tried + _IMAGINED)


class DraftPolicy:
    """Chooses how many tokens one drafter proposes, from its acceptance and the passes' costs.

    Worked: drafts hold with 0.8 and cost nothing, a pass over 5 tokens costs 1.25: 4 drafts yield
    1 + 0.8 + 0.64 + 0.51 + 0.41 = 3.36 tokens for 1.25, a gain of 2.7.

    Drafts are off while the best gain is below 1.03. Two are then tried after 16 passes, after 32
    more, … at most 256, until a try brings the gain back; none where they could not gain even if
    all of them held.
    """

    def __init__(self, source: str, costs: PassCosts, draft_prior: float = 0.0) -> None:
        """``draft_prior``: a draft step's cost, in passes over one token, until it is measured."""
        self.source = source
        self._costs = costs
        self._draft_prior = draft_prior
        self._engine = Acceptance(tried=_IMAGINED, held=_IMAGINED / 2)
        self._is_on = True
        self._wait = _FIRST_WAIT
        self._passes_left = 0  # until the next try, while drafts are off
        self._last = 0  # the number of drafts that was chosen last
        self._has_news = True  # results have come since the gain was last computed

    @property
    def acceptance(self) -> float:
        """The share of checked drafts that held, over all rows, the last ones most."""
        return self._engine.held / self._engine.tried

    def choose(self, rows: Sequence[Acceptance], num_rows: int, most: int) -> int:
        """Return how many tokens to draft for each of ``rows``: 0, 1, 2, 4 or 7, up to ``most``.

        ``num_rows`` run in the pass, with those that do not draft.
        """
        if not self._is_on and not self._has_news and self._passes_left > 0:
            return 0
        self._has_news = False
        costs = self._cycle_costs(num_rows, most)
        choices = [count for count in _CHOICES if count <= most]
        share = self.acceptance
        if max(_gains([share], costs)) >= _LEAST_GAIN:
            self._is_on, self._wait = True, _FIRST_WAIT
            gains = _gains([row.drawn_towards(share) for row in rows], costs)
            best = max(choices, key=gains.__getitem__)
            if self._last not in choices or gains[self._last] < _KEPT_GAIN * gains[best]:
                self._last = best
            return self._last
        if self._is_on:
            self._is_on, self._passes_left = False, self._wait
        tried = min(_TRY_TOKENS, most)
        if self._passes_left > 0 or _gains([1.0], costs)[tried] < _LEAST_GAIN:
            return 0
        self._wait = min(2 * self._wait, _LONGEST_WAIT)
        self._passes_left = self._wait
        return tried

    def add(self, results: Sequence[tuple[int, int]]) -> None:
        """Count a cycle: (tried, held) of each row that drafted."""
        self._has_news = True
        memory = _MEMORY if self._is_on else _TRY_MEMORY
        self._engine.tried = self._engine.tried * memory + sum(tried for tried, _ in results)
        self._engine.held = self._engine.held * memory + sum(held for _, held in results)

    def count_pass(self) -> None:
        """Count a pass, behind which a try may come."""
        self._passes_left = max(0, self._passes_left - 1)

    def _cycle_costs(self, num_rows: int, most: int) -> list[float]:
        """Return the cost of a cycle with 0 to ``most`` drafts."""
        draft = self._costs.draft_cost(self.source, num_rows, self._draft_prior)
        passes = self._costs.pass_costs(num_rows, most + 1)
        return [count * draft + cost for count, cost in enumerate(passes)]


def _gains(shares: Sequence[float], costs: Sequence[float]) -> list[float]:
    """Return the gain of 0, 1, … drafts over none, for rows whose drafts hold with ``shares``."""
    gains = [1.0]
    tokens = float(len(shares))
    powers = [1.0] * len(shares)
    for cost in costs[1:]:
        powers = [power * share for power, share in zip(powers, shares, strict=True)]
        tokens += sum(powers)
        gains.append(tokens / len(shares) / cost * costs[0])
    return gains
