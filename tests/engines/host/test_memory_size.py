"""Memory sizes: decimal and binary units, and what is none."""

from __future__ import annotations

import pytest

from skipdec.engines.errors import UsageError
from skipdec.engines.host.console import parse_memory_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1000", 1000),
        ("64B", 64),
        ("2GB", 2 * 10**9),
        (" 2 gib ", 2**31),
        ("1.5MiB", 3 * 2**19),
        ("0", 0),
    ],
)
def test_size_in_bytes(text: str, size: int) -> None:
    assert parse_memory_size(text, "--kv-memory") == size


@pytest.mark.parametrize("text", ["", "GB", "-1", "3 parsecs", "1e9", "nan"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--kv-memory.*allowed: e\.g\. 512MiB"):
        parse_memory_size(text, "--kv-memory")
