"""N-grams of texts that a model wrote, stored in its bundle: `own` drafts start with them.

The file has ``{"ngrams": [[1 to 3 tokens, the token that followed them most often, how often it
did, how often any token did], …]}``, the most frequent first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import NamedTuple

from ...engines.bundle import EngineBundle
from ...engines.constants import integer
from ...engines.documents import parse_json
from ...engines.errors import BundleError, SkipDecError, shown
from .ngrams import NOTHING_KNOWN, Follower, KnownNGrams

MAX_NGRAMS_BYTES = integer("max_ngrams_bytes")
KNOWN_TOKENS = integer("draft_known_tokens")  # of the longest n-gram
MAX_KNOWN = integer("draft_known_ngrams")
_REMEDY = "export the model again"
_LEAST = 2  # occurrences of a follower


class _Entry(NamedTuple):
    tokens: tuple[int, ...]
    next_token: int
    followed: int
    total: int


def count_ngrams(
    texts: Iterable[tuple[Sequence[int], int]], most: int = MAX_KNOWN
) -> list[list[int]]:
    """Return rows of the n-grams of ``texts``: tokens, and the index of the first that counts.

    An n-gram is kept if one token followed it twice or more, unless a shorter n-gram proposes that
    token with at least the same share. At most ``most`` are kept, the most frequent ones.
    """
    counted: dict[tuple[int, ...], dict[int, int]] = {}
    for tokens, start in texts:
        for index in range(max(1, start), len(tokens)):
            for length in range(1, min(KNOWN_TOKENS, index) + 1):
                followers = counted.setdefault(tuple(tokens[index - length : index]), {})
                followers[tokens[index]] = followers.get(tokens[index], 0) + 1
    entries: dict[tuple[int, ...], _Entry] = {}
    for tokens in sorted(counted, key=len):
        followers = counted[tokens]
        best = max(followers, key=lambda token: (followers[token], -token))
        entry = _Entry(tokens, best, followers[best], sum(followers.values()))
        shorter = entries.get(tokens[1:])
        if entry.followed >= _LEAST and not (shorter and _is_redundant(entry, shorter)):
            entries[tokens] = entry
    kept = sorted(entries.values(), key=lambda entry: (-entry.followed, entry))[:most]
    return [[*entry.tokens, entry.next_token, entry.followed, entry.total] for entry in kept]


def ngrams_json(rows: Sequence[Sequence[int]]) -> str:
    """Return the file of n-grams."""
    return json.dumps({"ngrams": rows}, separators=(",", ":"))


def _is_redundant(longer: _Entry, shorter: _Entry) -> bool:
    """Return True if ``shorter`` proposes the same token with at least the same share."""
    return (
        shorter.next_token == longer.next_token
        and shorter.followed * longer.total >= longer.followed * shorter.total
    )


def known_ngrams(bundle: EngineBundle) -> Callable[[], KnownNGrams]:
    """Read the n-grams that ``bundle`` has; the result parses them once, as `parse_ngrams` does.

    Parsing takes up to a quarter of a second, which only drafts need. Raises BundleError for a file
    that is gone or too large.
    """
    name = bundle.manifest.ngrams
    if name is None:
        return lambda: NOTHING_KNOWN
    content, subject = bundle.read(name, MAX_NGRAMS_BYTES), str(bundle.file(name))
    vocab_size = bundle.manifest.model.vocab_size
    parse = partial(parse_ngrams, subject=subject, remedy=_REMEDY)
    return cache(partial(parse, content, vocab_size, BundleError))


def parse_ngrams(
    content: bytes, vocab_size: int, raises: type[SkipDecError], *, subject: str, remedy: str
) -> KnownNGrams:
    """Parse the file of n-grams ``subject``.

    Raises ``raises`` unless it is an object with at most 65,536 of them, each once, of tokens
    below ``vocab_size``.
    """
    document = parse_json(content, raises, subject=subject, remedy=remedy, exact=True)
    rows = document.get("ngrams") if isinstance(document, dict) else None
    if not isinstance(rows, list) or len(rows) > MAX_KNOWN:
        raise raises(subject, f"has no list ngrams of up to {MAX_KNOWN:,} n-grams; {remedy}")
    known: dict[tuple[int, ...], Follower] = {}
    for index, row in enumerate(rows):
        entry = _entry(row, vocab_size)
        if entry is None or entry.tokens in known:
            raise raises(
                subject,
                f"ngrams.{index} is {shown(row)}; allowed: 1 to {KNOWN_TOKENS} tokens below "
                f"{vocab_size:,} that no other has, the next one, its count and that of all; "
                f"{remedy}",
            )
        known[entry.tokens] = Follower(entry.next_token, entry.followed, entry.total)
    return known


def _entry(row: object, vocab_size: int) -> _Entry | None:
    """Return a row of the file; None if it is not allowed."""
    if not isinstance(row, list) or not 4 <= len(row) <= KNOWN_TOKENS + 3:
        return None
    if set(map(type, row)) != {int}:
        return None
    *tokens, count, total = row
    if min(tokens) < 0 or max(tokens) >= vocab_size or not 1 <= count <= total < 2**31:
        return None
    return _Entry(tuple(tokens[:-1]), tokens[-1], count, total)
