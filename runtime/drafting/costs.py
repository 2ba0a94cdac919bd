"""What passes and draft steps cost, measured while the engines run."""

from __future__ import annotations

from collections import defaultdict, deque

from .config import MAX_DRAFT_TOKENS

_MEASURED = 15  # samples whose mean is a cost, but for the highest of them
_LEAST = 2  # samples before a cost counts as measured: the first may have found all cold
_LEAST_SECONDS = 1e-9
_FORGOTTEN = 256  # passes, behind which a cost that was not measured again counts for nothing
_PLAIN = 4  # passes over one token that are measured together: the first finds everything cold
_PRIOR_SLOPE = 0.04  # a row's further token, in steps of one row, before it was measured


class PassCosts:
    """Measured costs of passes over one token per row, of a further token, and of draft steps.

    A pass takes as long as all that is done for its tokens, draft steps aside; one whose longest
    row feeds k tokens more costs 1 + slope · k passes over one token, and each k has its slope.
    Rows fall into the classes 1, 2, 4, 8, …; a cost is the mean of the last 15 measured ones
    without the highest. It is forgotten 256 passes after the last of them, so that what looked slow
    once is tried again.
    """

    def __init__(self) -> None:
        self._plain: dict[int, _Recent] = defaultdict(_Recent)  # seconds, by class
        self._slopes: dict[tuple[int, int], _Recent] = defaultdict(_Recent)  # by class and drafts
        self._steps: dict[tuple[str, int], _Recent] = defaultdict(_Recent)  # seconds
        self._count: dict[int, int] = defaultdict(int)  # passes by class
        self._plain_left: dict[int, int] = defaultdict(lambda: _PLAIN)  # wanted now, by class
        self.draft_seconds = 0.0  # of all draft steps

    def add_pass(self, rows: int, tokens: int, seconds: float) -> None:
        """Add a pass whose longest row fed ``tokens`` tokens."""
        rows, seconds = _row_class(rows), max(seconds, _LEAST_SECONDS)
        self._count[rows] += 1
        count, plain = self._count[rows], self._plain[rows]
        if tokens == 1:
            plain.add(seconds, count)
            self._plain_left[rows] = max(0, self._plain_left[rows] - 1)
            return
        if plain.mean is not None:
            slope = max(0.0, seconds / plain.mean - 1) / (tokens - 1)
            self._slopes[rows, tokens - 1].add(slope, count)
        if count - plain.last >= _FORGOTTEN:
            self._plain_left[rows] = _PLAIN

    def add_draft(self, source: str, rows: int, seconds: float, *, is_first: bool = False) -> None:
        """Add a step of a drafter that runs layers; ``is_first``: it took longer than later ones.

        Its cost does not count then.
        """
        self.draft_seconds += seconds
        if not is_first:
            rows = _row_class(rows)
            self._steps[source, rows].add(max(seconds, _LEAST_SECONDS), self._count[rows])

    def wants_plain(self, rows: int) -> bool:
        """Return whether a pass of one token per row should be measured now."""
        return self._plain_left[_row_class(rows)] > 0

    def measure_plain_again(self) -> None:
        """Let passes of one token per row be measured next."""
        self._plain_left.clear()

    def in_plain_passes(self, rows: int, seconds: float) -> float | None:
        """Return ``seconds`` in passes over one token per row; None before these were measured."""
        plain = self._plain[_row_class(rows)].mean
        return None if plain is None else seconds / plain

    def slope(self, rows: int, drafts: int) -> float:
        """Return the cost of each of ``drafts`` further tokens of a row, in passes over one token.

        It is at most a pass, and with its others at most what a longer pass was measured to cost:
        times are noisy. Until passes with so many are measured, they are expected to cost what the
        longest measured ones below them do, and half of their slope for each token more, at least
        4 % of a step of one row.

        Worked, one row: a pass with one token more costs 1.4, so one with 3 more is expected to
        cost 1.4 + 2 · 0.2, and its slope is 0.27. If one with 4 more costs 1.3, it is 0.1.
        """
        rows = _row_class(rows)
        longer = {
            known: known * slope.mean
            for known in range(1, MAX_DRAFT_TOKENS + 1)
            if (slope := self._slopes[rows, known]).mean is not None
            and self._count[rows] - slope.last < _FORGOTTEN
        }
        known = max((each for each in longer if each <= drafts), default=0)
        further = _PRIOR_SLOPE * rows
        if known:
            further = max(longer[known] / known / 2, further)
        expected = longer.get(known, 0.0) + (drafts - known) * further
        above = (cost for each, cost in longer.items() if each > drafts)
        return min(1.0, min((expected, *above)) / drafts)

    def draft_cost(self, source: str, rows: int, prior: float) -> float:
        """Return the cost of a draft step, in passes over one token; ``prior`` until measured."""
        rows = _row_class(rows)
        plain, step = self._plain[rows].mean, self._steps[source, rows].mean
        return prior if plain is None or step is None else step / plain


class _Recent:
    """The mean of the last samples of one cost, and the number of the last pass among them."""

    __slots__ = ("_samples", "last", "mean")

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=_MEASURED)
        self.mean: float | None = None  # None until a few were measured
        self.last = 0

    def add(self, sample: float, count: int) -> None:
        """Add a sample of pass ``count``; after a long pause the earlier ones are forgotten."""
        if count - self.last >= _FORGOTTEN:
            self._samples.clear()
        self.last = count
        self._samples.append(sample)
        # Not the median: passes that bind engines or find their data cold are paid for, too.
        number, total = len(self._samples), sum(self._samples) - max(self._samples)
        self.mean = total / (number - 1) if number >= _LEAST else None


def _row_class(rows: int) -> int:
    """Return the power of two that is nearest from above."""
    return 1 << (rows - 1).bit_length()
