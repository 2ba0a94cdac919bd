"""API keys: from a file or the environment, compared in constant time."""

from __future__ import annotations

import hmac
import os
from pathlib import Path

from .....engines.documents import read_file
from .....engines.errors import UsageError

VARIABLE = "SKIPDEC_API_KEY"
_MAX_BYTES = 1 << 20


class ApiKeys:
    """The keys of which a request needs one; none at all: every request is let in."""

    def __init__(self, keys: tuple[str, ...] = ()) -> None:
        self._keys = tuple(key.encode() for key in keys)

    @classmethod
    def read(cls, path: Path | None) -> ApiKeys:
        """Read one key a line of the file ``path`` and of $SKIPDEC_API_KEY; # begins a comment.

        Raises UsageError for a file or a variable that is given and holds no key, so that nobody
        serves without keys by mistake, and for a file that is not text in UTF-8.
        """
        keys: list[str] = []
        if (variable := os.environ.get(VARIABLE)) is not None:
            keys += _keys(variable, f"${VARIABLE}", "unset it")
        if path is not None:
            content = read_file(path, UsageError, limit=_MAX_BYTES)
            try:
                text = content.decode("utf-8-sig")
            except UnicodeDecodeError as error:
                raise UsageError(
                    str(path), f"is not text in UTF-8 ({error}); save it as UTF-8"
                ) from error
            keys += _keys(text, str(path), "leave the file out")
        return cls(tuple(dict.fromkeys(keys)))

    @property
    def are_needed(self) -> bool:
        """True if there is a key at all."""
        return bool(self._keys)

    def client(self, authorization: bytes) -> str | None:
        """Return a name for whoever has the header's key, the same for all of its requests.

        None for a key that is not ours, and where none is needed: a name that clients choose by
        themselves would be another one for each request.
        """
        _, _, given = authorization.partition(b" ")
        matches = [hmac.compare_digest(key, given.strip()) for key in self._keys]
        return f"key {matches.index(True)}" if any(matches) else None

    def accept(self, authorization: bytes) -> bool:
        """Return True if the header ``Bearer KEY`` has one of the keys, or none is needed."""
        scheme, _, given = authorization.partition(b" ")
        found = not self._keys
        for key in self._keys:  # all of them, so that time says nothing of which
            found |= hmac.compare_digest(key, given.strip())
        return found and (not self._keys or scheme.lower() == b"bearer")


def _keys(text: str, subject: str, remedy: str) -> list[str]:
    """The keys of ``text``. Raises UsageError for none, and for one that no client can send."""
    lines = [line.strip() for line in text.splitlines()]
    keys = []
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        if not line.isprintable():
            raise UsageError(subject, f"line {number} has control characters; write plain text")
        keys.append(line)
    if not keys:
        raise UsageError(
            subject,
            "has no key: it is empty, or its lines begin with #, which makes them comments; "
            f"write a key a line, or {remedy} to serve without keys",
        )
    return keys
