"""Limits, names and defaults that libskipdec shares: read from constants.json.

setup.py and CMake generate libskipdec's ``constants.h`` from the same file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

_VALUES: Mapping[str, int | str | list[str]] = json.loads(
    Path(__file__).with_name("constants.json").read_text(encoding="utf-8")
)


def integer(name: str) -> int:
    """Return the number ``name``."""
    value = _VALUES[name]
    assert isinstance(value, int), name
    return value


def text(name: str) -> str:
    """Return the text ``name``."""
    value = _VALUES[name]
    assert isinstance(value, str), name
    return value


def names(name: str) -> tuple[str, ...]:
    """Return the list of texts ``name``."""
    value = _VALUES[name]
    assert isinstance(value, list), name
    return tuple(value)
