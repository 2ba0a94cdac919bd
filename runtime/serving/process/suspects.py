"""Suspects: requests that ran when a worker died, found again by a hash of what they ask for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

_MOST = 4096  # hashes that are remembered
_DEATHS = 2  # with which a request is refused


class Suspects:
    """How many workers died with which request.

    One death makes all that ran suspects, though but one may be to blame. So at most one of them
    runs at a time from then on: a second death has one suspect alone, who is poison.
    """

    def __init__(self) -> None:
        self._deaths: OrderedDict[str, int] = OrderedDict()

    def blame(self, contents: Iterable[str]) -> None:
        """A worker died while these ran."""
        for content in dict.fromkeys(contents):
            self._deaths[content] = self._deaths.pop(content, 0) + 1
            while len(self._deaths) > _MOST:
                self._deaths.popitem(last=False)

    def clear(self, content: str) -> None:
        """It ran to its end: it was another's fault."""
        self._deaths.pop(content, None)

    def has(self, content: str) -> bool:
        """Whether it ran when a worker died."""
        return content in self._deaths

    def is_poison(self, content: str) -> bool:
        """Whether it is not to be run again."""
        return self._deaths.get(content, 0) >= _DEATHS

    def __bool__(self) -> bool:
        return bool(self._deaths)
