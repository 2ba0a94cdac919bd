"""N-grams of texts: a table of what followed them, and an index of where one text has them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from ...engines.constants import integer
from .acceptance import Guesses

NGRAM_TOKENS = integer("draft_ngram_tokens")  # of the longest key
_MAX_FOLLOWERS = integer("draft_followers")  # counted per key
_MAX_KEYS = integer("draft_keys")
_MAX_CLIENTS = integer("draft_clients")
_MAX_CLIENT_KEYS = integer("draft_client_keys")
_LOOKUP_TOKENS = integer("draft_lookup_tokens")
_LEAST_LOOKUP_TOKENS = 2
_MOST_MATCHED = 8  # longer matches have the same class
_SHARES = 4  # classes of a follower's share

OWN_PRIORS = tuple((part + 0.5) / _SHARES for part in range(_SHARES)) * NGRAM_TOKENS
"""Expected acceptance, by class of `NGramTable`'s evidence."""

LOOKUP_PRIORS = (0.5,) * (_MOST_MATCHED - _LEAST_LOOKUP_TOKENS + 1)
"""Expected acceptance, by class of `LookupIndex`'s evidence."""


class Follower:
    """The token that followed one n-gram most often, how often it did, and how often any did."""

    __slots__ = ("best", "followed", "total")

    def __init__(self, token: int, followed: int = 1, total: int = 1) -> None:
        self.best = token
        self.followed = followed
        self.total = total


class _Followers(Follower):
    """All tokens that followed one n-gram, up to 16, with their counts."""

    __slots__ = ("_counts",)

    def __init__(self, token: int) -> None:
        super().__init__(token)
        self._counts = {token: 1}

    def add(self, token: int) -> None:
        """Count a token that followed."""
        counts = self._counts
        self.total += 1
        found = counts.get(token)
        if found is None:
            if len(counts) < _MAX_FOLLOWERS:
                counts[token] = 1
            return
        counts[token] = found + 1
        if found + 1 > self.followed:
            self.best, self.followed = token, found + 1


KnownNGrams = Mapping[tuple[int, ...], Follower]
"""The most frequent follower of n-grams in texts that the model wrote before its export."""

NOTHING_KNOWN: KnownNGrams = {}


class NGramTable:
    """Counts which tokens followed each sequence of 1 to 5 tokens in the texts that it has seen.

    Worked: after ``a b c a b d a b d`` the table proposes ``d`` to follow ``a b``, because ``d``
    followed it twice and ``c`` once. Of equal counts, the one that was reached first wins.

    It holds up to ``max_keys`` n-grams with up to 16 followers each; a further one evicts the
    oldest. Counting a token takes a few microseconds. ``known`` n-grams come from the bundle; they
    are never evicted or counted further. If texts have the same n-gram, the one that was followed
    more often is used.
    """

    def __init__(self, max_keys: int = _MAX_KEYS, known: KnownNGrams = NOTHING_KNOWN) -> None:
        self._max_keys = max_keys
        self._known = known
        self._followers: OrderedDict[tuple[int, ...], _Followers] = OrderedDict()  # oldest first

    def __len__(self) -> int:
        """Return the number of n-grams of texts."""
        return len(self._followers)

    def count(self, tokens: Sequence[int], start: int) -> None:
        """Count each token from ``start`` on as a follower of the tokens before it."""
        followers = self._followers
        for index in range(start, len(tokens)):
            token = tokens[index]
            before = tuple(tokens[max(0, index - NGRAM_TOKENS) : index])
            for first in range(len(before) - 1, -1, -1):
                key = before[first:]
                found = followers.get(key)
                if found is not None:
                    found.add(token)
                    continue
                if len(followers) >= self._max_keys:
                    followers.popitem(last=False)
                followers[key] = _Followers(token)

    def propose(self, tokens: Sequence[int], most: int) -> Guesses:
        """Return up to ``most`` tokens that may follow ``tokens``, the longest n-gram's first.

        The evidence of a guess is the length of its n-gram, and which share of the tokens that
        followed it was this one. Worked: ``d`` followed ``a b`` twice, another token once; of one
        token more than have been seen, 2 / 4 is in the third quarter, so the class is
        4 · (2 − 1) + 2 = 6.
        """
        tail = tuple(tokens[-NGRAM_TOKENS:])
        proposed: list[int] = []
        evidence: list[int] = []
        while len(proposed) < most:
            for start in range(len(tail)):
                found = self._behind(tail[start:])
                if found is not None:
                    break
            else:
                break
            token = found.best
            proposed.append(token)
            share = _SHARES * found.followed // (found.total + 1)
            evidence.append(_SHARES * (len(tail) - start - 1) + share)
            tail = (*tail, token)[-NGRAM_TOKENS:]
        return Guesses(proposed, evidence)

    def _behind(self, key: tuple[int, ...]) -> Follower | None:
        counted, known = self._followers.get(key), self._known.get(key)
        if counted is None or known is None:
            return counted or known
        return known if known.total > counted.total else counted


class NGramTables:
    """The table that all clients share, and those of the clients that used their own last.

    ``shared`` is the table of all clients.
    """

    def __init__(self, known: KnownNGrams = NOTHING_KNOWN) -> None:
        self._known = known
        self.shared = NGramTable(known=known)
        self._by_client: OrderedDict[str, NGramTable] = OrderedDict()  # least recently used first

    def clear(self) -> None:
        """Forget all texts."""
        self.shared = NGramTable(known=self._known)
        self._by_client.clear()

    def of_client(self, client: str) -> NGramTable:
        """Return the client's own table; of more than 32 the least recently used is evicted."""
        table = self._by_client.get(client)
        if table is None:
            if len(self._by_client) >= _MAX_CLIENTS:
                self._by_client.popitem(last=False)
            table = self._by_client[client] = NGramTable(_MAX_CLIENT_KEYS, self._known)
        self._by_client.move_to_end(client)
        return table


class LookupIndex:
    """Maps each 2- to 4-gram of one text to its last occurrence, to find what followed it.

    Worked: after ``x y z … x y`` it proposes ``z`` and what followed it.
    """

    def __init__(self) -> None:
        self._behind: dict[tuple[int, ...], int] = {}  # n-gram -> the index after it
        self._done = 0  # n-grams that end before this index are in the index

    def propose(self, tokens: Sequence[int], most: int) -> Guesses:
        """Return up to ``most`` tokens that followed the last earlier occurrence of the text's end.

        ``tokens`` are the text so far, which only grows from call to call. The evidence of a guess
        is the number of tokens before it that match, guesses included: 2 is class 0, 8 and more
        class 6.
        """
        self._add(tokens)
        for length in range(min(_LOOKUP_TOKENS, len(tokens)), _LEAST_LOOKUP_TOKENS - 1, -1):
            index = self._behind.get(tuple(tokens[-length:]))
            if index is not None:
                found = tokens[index : index + most]
                matched = range(length, length + len(found))
                return Guesses(
                    found, [min(one, _MOST_MATCHED) - _LEAST_LOOKUP_TOKENS for one in matched]
                )
        return Guesses()

    def _add(self, tokens: Sequence[int]) -> None:
        """Add the n-grams that end before the last token, so that a token follows them."""
        for end in range(max(self._done, _LEAST_LOOKUP_TOKENS), len(tokens)):
            for length in range(_LEAST_LOOKUP_TOKENS, min(_LOOKUP_TOKENS, end) + 1):
                self._behind[tuple(tokens[end - length : end])] = end
        self._done = max(self._done, len(tokens))
