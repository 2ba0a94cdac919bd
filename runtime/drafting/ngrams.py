"""N-grams of texts: a table of what followed them, and an index of where one text has them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from ...engines.constants import integer

NGRAM_TOKENS = integer("draft_ngram_tokens")  # of the longest key
_MAX_FOLLOWERS = integer("draft_followers")  # counted per key
_MAX_KEYS = integer("draft_keys")
_MAX_CLIENTS = integer("draft_clients")
_MAX_CLIENT_KEYS = integer("draft_client_keys")
_LOOKUP_TOKENS = integer("draft_lookup_tokens")
_LEAST_LOOKUP_TOKENS = 2


class _Followers:
    """The tokens that followed one n-gram, with their counts, and the most frequent of them."""

    __slots__ = ("best", "counts")

    def __init__(self, token: int) -> None:
        self.best = token
        self.counts = {token: 1}

    def count(self, token: int) -> None:
        counts = self.counts
        found = counts.get(token)
        if found is None:
            if len(counts) < _MAX_FOLLOWERS:
                counts[token] = 1
            return
        counts[token] = found + 1
        if token != self.best and found + 1 > counts[self.best]:
            self.best = token


class NGramTable:
    """Tokens that followed the last 1 to 5 tokens of texts, counted over all texts it was told.

    Worked: after ``a b c a b d a b d`` the table proposes ``d`` behind ``a b``: it followed twice,
    ``c`` once. Of equal counts the one that reached it first is proposed.

    It holds up to ``max_keys`` n-grams; a new one beyond evicts the one inserted first. Each holds
    up to 16 followers. Counting a token takes a few microseconds.
    """

    def __init__(self, max_keys: int = _MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._followers: OrderedDict[tuple[int, ...], _Followers] = OrderedDict()  # oldest first

    def __len__(self) -> int:
        """Return the number of n-grams."""
        return len(self._followers)

    def count(self, tokens: Sequence[int], start: int) -> None:
        """Count each token from ``start`` on as a follower of the tokens before it."""
        followers = self._followers
        for place in range(start, len(tokens)):
            token = tokens[place]
            for length in range(1, min(NGRAM_TOKENS, place) + 1):
                key = tuple(tokens[place - length : place])
                found = followers.get(key)
                if found is not None:
                    found.count(token)
                    continue
                if len(followers) >= self._max_keys:
                    followers.popitem(last=False)
                followers[key] = _Followers(token)

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        """Return up to ``most`` tokens that may follow ``tokens``, the longest n-gram's first."""
        tail = list(tokens[-NGRAM_TOKENS:])
        proposed: list[int] = []
        while len(proposed) < most:
            token = self._best(tail)
            if token is None:
                break
            proposed.append(token)
            tail.append(token)
            if len(tail) > NGRAM_TOKENS:
                del tail[0]
        return proposed

    def _best(self, tail: list[int]) -> int | None:
        for start in range(len(tail)):
            found = self._followers.get(tuple(tail[start:]))
            if found is not None:
                return found.best
        return None


class NGramTables:
    """The table that all clients share, or one for each of the clients that used theirs last."""

    def __init__(self) -> None:
        self._shared = NGramTable()
        self._by_client: OrderedDict[str, NGramTable] = OrderedDict()  # least recently used first

    def clear(self) -> None:
        """Forget everything."""
        self._shared = NGramTable()
        self._by_client.clear()

    def shared(self) -> NGramTable:
        """Return the table of all clients."""
        return self._shared

    def of_client(self, client: str) -> NGramTable:
        """Return the client's own table; the one that was not used for longest goes beyond 32."""
        table = self._by_client.get(client)
        if table is None:
            if len(self._by_client) >= _MAX_CLIENTS:
                self._by_client.popitem(last=False)
            table = self._by_client[client] = NGramTable(_MAX_CLIENT_KEYS)
        self._by_client.move_to_end(client)
        return table


class LookupIndex:
    """Where each 2- to 4-gram of one text occurred last, to find what followed it.

    Worked: behind ``x y z … x y`` it proposes ``z`` and what followed it.
    """

    def __init__(self) -> None:
        self._behind: dict[tuple[int, ...], int] = {}  # n-gram -> the place behind it
        self._done = 0  # n-grams that end before this place are in the index

    def propose(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        """Return up to ``most`` tokens that followed the latest earlier occurrence of the end.

        ``tokens`` are the text so far, which only grows from call to call.
        """
        self._add(tokens)
        for length in range(min(_LOOKUP_TOKENS, len(tokens)), _LEAST_LOOKUP_TOKENS - 1, -1):
            place = self._behind.get(tuple(tokens[-length:]))
            if place is not None:
                return tokens[place : place + most]
        return ()

    def _add(self, tokens: Sequence[int]) -> None:
        """Add the n-grams that end before the last token, behind which something follows."""
        for end in range(max(self._done, _LEAST_LOOKUP_TOKENS), len(tokens)):
            for length in range(_LEAST_LOOKUP_TOKENS, min(_LOOKUP_TOKENS, end) + 1):
                self._behind[tuple(tokens[end - length : end])] = end
        self._done = max(self._done, len(tokens))
