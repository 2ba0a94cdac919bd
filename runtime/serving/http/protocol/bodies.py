"""Bodies of requests: JSON that is read without holding up the event loop.

A long body is read in a thread. The interpreter's lock is shared all the same, and the JSON reader
keeps it while it makes lists, objects and texts: so their number has a bound. Numbers, of which a
body may hold many, are made by Python functions, between which other threads run.
"""

from __future__ import annotations

from typing import Any

from .....engines.documents import parse_json
from .....engines.errors import UsageError

MAX_CONTAINERS = 1_024  # lists and objects
MAX_TEXTS = 12_000  # names of fields included
_SMALL = 4_096  # bytes; fewer can't hold enough of anything to take a millisecond


def is_small(body: bytes) -> bool:
    """Return True if the body is short enough to be read in the event loop's own thread."""
    return len(body) <= _SMALL


def parse_body(body: bytes) -> Any:  # noqa: ANN401  (any JSON value)
    """Return the value of a body. Raises UsageError for one that is not JSON, or holds too much."""
    if is_small(body):
        return parse_json(body, UsageError, subject="body")
    bare = body.replace(rb"\\", b"").replace(rb"\"", b"")  # quotes left begin and end texts
    texts = bare.count(b'"') // 2
    if texts > MAX_TEXTS:
        raise _too_much("texts, names of fields included", texts, MAX_TEXTS)
    outside = b"".join(bare.split(b'"')[::2])
    containers = outside.count(b"[") + outside.count(b"{")
    if containers > MAX_CONTAINERS:
        raise _too_much("lists and objects, nested ones included", containers, MAX_CONTAINERS)
    return parse_json(body, UsageError, subject="body", yields=True)


def _too_much(kind: str, count: int, most: int) -> UsageError:
    return UsageError("body", f"has {count:,} {kind}; allowed: {most:,}; send several requests")
