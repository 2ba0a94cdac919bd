"""How many tokens to draft: what passes cost, how often drafts hold, and when to stop drafting."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

_WINDOW = 15  # passes whose lower quartile is a cost: a first pass binds engines, others wait
_LEAST = 3  # passes before a cost counts as measured
_LEAST_SECONDS = 1e-9
_STALE = 256  # passes, behind which a cost that was not measured again counts for nothing
_REFRESH = 128  # passes with drafts, behind which one without is measured again
_PRIOR_SLOPE = 0.04  # a row's further token, in steps of one row, before it was measured
_IMAGINED = 8.0  # tries at the engine's acceptance that a row begins with
_MEMORY = 0.99  # of the engine's acceptance, per cycle with drafts
_TRY_MEMORY = 0.5  # while drafts are off: old results must not outweigh the few tries
_LEAST_GAIN = 1.03
_TRY_TOKENS = 2
_FIRST_WAIT, _LONGEST_WAIT = 16, 256  # tokens between two tries while drafts are off


class PassCosts:
    """Measured seconds of passes, and of draft steps, by the number of rows.

    Rows fall into the classes 1, 2, 4, 8, …; a cost is the lower quartile of the last 15 measured
    ones. It is forgotten 256 passes after the last of them, so that what looked slow once is tried
    again.
    """

    def __init__(self) -> None:
        self._passes: dict[tuple[int, int], _Seconds] = defaultdict(_Seconds)
        self._drafts: dict[tuple[str, int], _Seconds] = defaultdict(_Seconds)
        self._count: dict[int, int] = defaultdict(int)  # passes by class
        self._plain: dict[int, int] = defaultdict(int)  # the last one over one token, of them

    def add_pass(self, rows: int, tokens: int, seconds: float) -> None:
        """Add a pass whose longest row fed ``tokens`` tokens."""
        rows = _row_class(rows)
        self._count[rows] += 1
        self._passes[rows, tokens].add(seconds, self._count[rows])
        if tokens == 1:
            self._plain[rows] = self._count[rows]

    def add_draft(self, source: str, rows: int, seconds: float) -> None:
        """Add a step of a drafter that runs layers."""
        rows = _row_class(rows)
        self._drafts[source, rows].add(seconds, self._count[rows])

    def wants_plain(self, rows: int) -> bool:
        """Return whether a pass of one token per row should be measured now."""
        rows = _row_class(rows)
        since = self._count[rows] - self._plain[rows]
        return self._passes[rows, 1].cost is None or since >= _REFRESH

    def pass_cost(self, rows: int, tokens: int) -> float:
        """Return the cost of a pass over ``tokens`` tokens per row, in passes over one each."""
        if tokens == 1:
            return 1.0
        rows = _row_class(rows)
        plain, measured = self._passes[rows, 1].cost, self._passes[rows, tokens]
        is_stale = self._count[rows] - measured.last >= _STALE
        if plain is not None and measured.cost is not None and not is_stale:
            return measured.cost / plain
        return min(1 + _PRIOR_SLOPE * rows * (tokens - 1), float(tokens))

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
        times = sorted(self._times)
        self.cost = times[(len(times) - 1) // 4] if len(times) >= _LEAST else None


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

    Drafts are off while the best gain is below 1.03. Two are then tried after 16 tokens, after 32
    more, … at most 256, until a try brings the gain back.
    """

    def __init__(self, source: str, costs: PassCosts, draft_prior: float = 0.0) -> None:
        """``draft_prior``: a draft step's cost, in passes over one token, until it is measured."""
        self.source = source
        self._costs = costs
        self._draft_prior = draft_prior
        self._engine = Acceptance(tried=_IMAGINED, held=_IMAGINED / 2)
        self._is_on = True
        self._wait = _FIRST_WAIT
        self._tokens_left = 0  # until the next try, while drafts are off
        self._has_news = True  # results have come since the gain was last computed

    @property
    def acceptance(self) -> float:
        """The share of checked drafts that held, over all rows, the last ones most."""
        return self._engine.held / self._engine.tried

    def choose(self, rows: Sequence[Acceptance], num_rows: int, most: int) -> int:
        """Return how many tokens to draft for each of ``rows``, 0 to ``most``.

        ``num_rows`` run in the pass, with those that do not draft.
        """
        if not self._is_on and not self._has_news and self._tokens_left > 0:
            return 0
        self._has_news = False
        costs = self._cycle_costs(num_rows, most)
        share = self.acceptance
        gain = _best([share], costs)[1]
        if gain >= _LEAST_GAIN:
            self._is_on, self._wait = True, _FIRST_WAIT
            shares = [row.drawn_towards(share) for row in rows]
            return _best(shares, costs)[0]
        if self._is_on:
            self._is_on, self._tokens_left = False, self._wait
        if self._tokens_left > 0:
            return 0
        self._wait = min(2 * self._wait, _LONGEST_WAIT)
        self._tokens_left = self._wait
        return min(_TRY_TOKENS, most)

    def add(self, results: Sequence[tuple[int, int]]) -> None:
        """Count a cycle: (tried, held) of each row that drafted."""
        self._has_news = True
        memory = _MEMORY if self._is_on else _TRY_MEMORY
        self._engine.tried = self._engine.tried * memory + sum(tried for tried, _ in results)
        self._engine.held = self._engine.held * memory + sum(held for _, held in results)

    def count_tokens(self, tokens: int) -> None:
        """Count generated tokens, behind which a try may come."""
        self._tokens_left = max(0, self._tokens_left - tokens)

    def _cycle_costs(self, num_rows: int, most: int) -> list[float]:
        """Return the cost of a cycle with 0 to ``most`` drafts."""
        draft = self._costs.draft_cost(self.source, num_rows, self._draft_prior)
        return [
            count * draft + self._costs.pass_cost(num_rows, count + 1) for count in range(most + 1)
        ]


def _best(shares: Sequence[float], costs: Sequence[float]) -> tuple[int, float]:
    """Return the number of drafts with the highest gain over none, and that gain."""
    best, best_gain = 0, 1.0
    tokens = [1.0] * len(shares)
    powers = list(tokens)
    for count in range(1, len(costs)):
        powers = [power * share for power, share in zip(powers, shares, strict=True)]
        tokens = [total + power for total, power in zip(tokens, powers, strict=True)]
        gain = sum(tokens) / len(shares) / costs[count] * costs[0]
        if gain > best_gain:
            best, best_gain = count, gain
    return best, best_gain
