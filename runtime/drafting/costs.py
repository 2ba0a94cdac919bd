"""What passes and draft steps cost, measured while the engines run."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from .config import MAX_DRAFT_TOKENS

_WINDOW = 15  # passes whose mean is a cost, but for the slowest of them
_LEAST = 3  # passes before a cost counts as measured
_LEAST_SECONDS = 1e-9
_STALE = 256  # passes, behind which a cost that was not measured again counts for nothing
_REFRESH = 256  # passes with drafts, behind which a few without are measured again
_PLAIN = 4  # so few: the first finds everything cold
_PRIOR_SLOPE = 0.04  # a row's further token, in steps of one row, before it was measured


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

    def add_draft(self, source: str, rows: int, seconds: float, *, is_first: bool = False) -> None:
        """Add a step of a drafter that runs layers; ``is_first``: it took longer than later ones.

        Its cost does not count then.
        """
        self.draft_seconds += seconds
        if is_first:
            return
        rows = _row_class(rows)
        self._drafts[source, rows].add(seconds, self._count[rows])

    def wants_plain(self, rows: int) -> bool:
        """Return whether a pass of one token per row should be measured now."""
        return self._plain_left[_row_class(rows)] > 0

    def measure_plain_again(self) -> None:
        """Let passes of one token per row be measured next."""
        self._plain_left.clear()

    def in_plain_passes(self, rows: int, seconds: float) -> float | None:
        """Return ``seconds`` in passes over one token per row; None before these were measured."""
        plain = self._passes[_row_class(rows), 1].cost
        return None if plain is None else seconds / plain

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
    for index in range(len(costs) - 2, 0, -1):
        if costs[index] is None:
            filled[index] = min(filled[index], filled[index + 1])
    return filled


def _row_class(rows: int) -> int:
    """Return the power of two that is nearest from above."""
    return 1 << (rows - 1).bit_length()
