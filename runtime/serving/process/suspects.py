"""Suspects: requests that ran when a worker died, found again by a hash of what they ask for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic

_MOST = 4096  # hashes that are remembered
_DEATHS = 2  # with which a request is refused


@dataclass(frozen=True)
class _Blame:
    """The number of deaths that a request was blamed for, and the time of the last one."""

    deaths: int
    time: float


class Suspects:
    """Count how many workers died with which request.

    A death makes a suspect of every request that ran, though only one may be to blame. So at most
    one suspect runs at a time from then on: a second death has one suspect alone, which is poison.

    Each ``timeout`` seconds without a death forgive one. A poisonous request is thus tried again
    after that time, as a suspect, and refused anew if one more worker dies with it. ``clock``
    returns seconds and never goes back.
    """

    def __init__(self, timeout: float, clock: Callable[[], float] = monotonic) -> None:
        self._timeout = timeout
        self._clock = clock
        self._blames: OrderedDict[str, _Blame] = OrderedDict()  # the latest death last

    def blame(self, contents: Iterable[str]) -> None:
        """Note that a worker died while these ran."""
        now = self._clock()
        for content in dict.fromkeys(contents):
            deaths = min(self._deaths(content) + 1, _DEATHS)
            self._blames.pop(content, None)
            self._blames[content] = _Blame(deaths, now)
        while len(self._blames) > _MOST:
            self._blames.popitem(last=False)

    def clear(self, content: str) -> None:
        """Acquit a request that ran to its end."""
        self._blames.pop(content, None)

    def has(self, content: str) -> bool:
        """Return whether a worker died while it ran, and that is not forgiven."""
        return self._deaths(content) > 0

    def is_poison(self, content: str) -> bool:
        """Return whether it must not run now."""
        return self._deaths(content) >= _DEATHS

    def seconds_left(self, content: str) -> float:
        """Return how long a poisonous request stays refused."""
        blame = self._blames.get(content)
        return 0.0 if blame is None else max(0.0, blame.time + self._timeout - self._clock())

    def __bool__(self) -> bool:
        """Return whether there may be any; forgets those whose deaths are all forgiven."""
        while self._blames and not self._deaths(oldest := next(iter(self._blames))):
            del self._blames[oldest]
        return bool(self._blames)

    def __len__(self) -> int:
        return len(self._blames)

    def _deaths(self, content: str) -> int:
        """Return how many deaths it is blamed for that are not forgiven yet."""
        blame = self._blames.get(content)
        if blame is None:
            return 0
        return max(0, blame.deaths - int((self._clock() - blame.time) / self._timeout))
