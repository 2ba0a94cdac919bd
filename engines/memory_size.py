"""Memory sizes as people write them."""

from __future__ import annotations

import re

from .errors import UsageError

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def parse_memory_size(text: str, subject: str) -> int:
    """Return the bytes that ``text`` says; ``subject`` names the option in a UsageError.

    >>> parse_memory_size("1.5GiB", "--kv-memory"), parse_memory_size("2 GB", "--kv-memory")
    (1610612736, 2000000000)
    """
    match = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise UsageError(
            subject, f"{text!r} is no size; allowed: e.g. 512MiB, 1.5GiB, 2GB, 1000000"
        )
    return int(float(match[1]) * unit)
