"""What passes and draft steps cost, measured while the engines run."""

from __future__ import annotations

from collections import defaultdict, deque

from .config import MAX_DRAFT_TOKENS

_MEASURED = 15  # samples whose mean, without the highest, is a cost
_LEAST = 2  # samples before a cost counts as measured: the first may have run on cold caches
_LEAST_SECONDS = 1e-9
_FORGOTTEN = 256  # passes after which a cost that was not measured again is forgotten
_PLAIN = 4  # passes over one token that are measured together: the first runs on cold caches
_PRIOR_FURTHER = 0.04  # cost of a row's further token, in passes of one row, until it is measured


class PassCosts:
    """Measured costs of passes over one token per row, of further tokens, and of draft steps.

    The time of a pass is that of everything done for its tokens, except draft steps. Rows fall into
    the classes 1, 2, 4, 8, …; a cost is the mean of the last 15 samples without the highest. It is
    forgotten 256 passes after the last sample, so that what looked slow once is tried again.
    """

    def __init__(self) -> None:
        self._plain: dict[int, _Recent] = defaultdict(_Recent)  # seconds, by class
        self._further: dict[tuple[int, int], _Recent] = defaultdict(_Recent)  # by class and drafts
        self._expected: dict[int, list[float]] = {}  # of 0, 1, … drafts, by class
        self._steps: dict[tuple[str, int], _Recent] = defaultdict(_Recent)  # seconds
        self._count: dict[int, int] = defaultdict(int)  # passes by class
        self._plain_left: dict[int, int] = defaultdict(lambda: _PLAIN)  # still to measure, by class
        self.draft_seconds = 0.0  # of all draft steps

    def add_pass(self, rows: int, tokens: int, seconds: float) -> None:
        """Add a pass whose longest row fed ``tokens`` tokens."""
        rows, seconds = _row_class(rows), max(seconds, _LEAST_SECONDS)
        self._count[rows] += 1
        self._expected.pop(rows, None)
        count, plain = self._count[rows], self._plain[rows]
        if tokens == 1:
            plain.add(seconds, count)
            self._plain_left[rows] = max(0, self._plain_left[rows] - 1)
            return
        if plain.mean is not None:
            self._further[rows, tokens - 1].add(max(0.0, seconds / plain.mean - 1), count)
        if count - plain.last >= _FORGOTTEN:
            self._plain_left[rows] = _PLAIN

    def add_draft(self, source: str, rows: int, seconds: float, *, is_first: bool = False) -> None:
        """Add a step of a drafter that runs layers.

        With ``is_first`` it took longer than later steps will, so its cost does not count.
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
        """Return ``seconds`` in passes over one token per row; None until these are measured."""
        plain = self._plain[_row_class(rows)].mean
        return None if plain is None else seconds / plain

    def further(self, rows: int, drafts: int) -> float:
        """Return the extra cost of a pass whose longest row feeds ``drafts`` more tokens.

        It is in passes over one token: at most one per token and, because times are noisy, at most
        the measured cost of any longer pass. A pass that was not measured is expected to cost as
        much as the longest measured one below it, plus, per further token, half of what that one
        costs per token, or 4 % of a pass of one row if that is more.

        Worked, one row: a pass with 1 more token costs 1.4, so one with 3 more is expected to cost
        1.4 + 2 · 0.2, and 0.8 is returned. If one with 4 more costs 1.3, it is 0.3.
        """
        rows = _row_class(rows)
        if rows not in self._expected:
            self._expected[rows] = self._expect(rows)
        return self._expected[rows][drafts]

    def _expect(self, rows: int) -> list[float]:
        known, measured, expected = 0, 0.0, [0.0]
        for drafts in range(1, MAX_DRAFT_TOKENS + 1):
            recent = self._further[rows, drafts]
            if recent.mean is not None and self._count[rows] - recent.last < _FORGOTTEN:
                known, measured = drafts, recent.mean
                expected = [min(cost, measured) for cost in expected]
            least = _PRIOR_FURTHER * rows
            further = max(measured / known / 2, least) if known else least
            expected.append(min(float(drafts), measured + (drafts - known) * further))
        return expected

    def draft_cost(self, source: str, rows: int, prior: float) -> float:
        """Return the cost of a draft step, in passes over one token; ``prior`` until measured."""
        rows = _row_class(rows)
        plain, step = self._plain[rows].mean, self._steps[source, rows].mean
        return prior if plain is None or step is None else step / plain


class _Recent:
    """The mean of the last samples of one cost, and the number of the pass that added the last."""

    __slots__ = ("_samples", "last", "mean")

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=_MEASURED)
        self.mean: float | None = None  # None until there are enough samples
        self.last = 0

    def add(self, sample: float, count: int) -> None:
        """Add a sample of pass ``count``; after a long pause the earlier ones are forgotten."""
        if count - self.last >= _FORGOTTEN:
            self._samples.clear()
        self.last = count
        self._samples.append(sample)
        # Not the median: passes that bind engines or run on cold caches take their time, too.
        number, total = len(self._samples), sum(self._samples) - max(self._samples)
        self.mean = total / (number - 1) if number >= _LEAST else None


def _row_class(rows: int) -> int:
    """Return the smallest power of two that is not below ``rows``."""
    return 1 << (rows - 1).bit_length()
