"""API keys: from a file or the environment, compared in constant time."""

from __future__ import annotations

import hmac
import os
from pathlib import Path

from ....engines.documents import read_file
from ....engines.errors import UsageError

VARIABLE = "SKIPDEC_API_KEY"
_MAX_BYTES = 1 << 20


class ApiKeys:
    """The keys of which a request needs one; none at all: every request is let in."""

    def __init__(self, keys: tuple[str, ...] = ()) -> None:
        self._keys = tuple(key.encode() for key in keys)

    @classmethod
    def read(cls, path: Path | None) -> ApiKeys:
        """One key a line of the file ``path`` and of $SKIPDEC_API_KEY; lines with # are comments.

        Raises UsageError for a file without any, and for one that can't be read.
        """
        text = os.environ.get(VARIABLE, "")
        if path is not None:
            content = read_file(path, UsageError, limit=_MAX_BYTES).decode(errors="replace")
            if not _keys(content):
                raise UsageError(str(path), "has no key; write one a line, or leave it out")
            text = f"{text}\n{content}"
        return cls(_keys(text))

    @property
    def are_needed(self) -> bool:
        """Whether there is a key at all."""
        return bool(self._keys)

    def accept(self, authorization: bytes) -> bool:
        """Whether the header ``Bearer KEY`` has one of the keys, or none is needed."""
        scheme, _, given = authorization.partition(b" ")
        found = not self._keys
        for key in self._keys:  # all of them, so that time says nothing of which
            found |= hmac.compare_digest(key, given.strip())
        return found and (not self._keys or scheme.lower() == b"bearer")


def _keys(text: str) -> tuple[str, ...]:
    lines = (line.strip() for line in text.splitlines())
    return tuple(dict.fromkeys(line for line in lines if line and not line.startswith("#")))
