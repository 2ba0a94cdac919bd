"""Imports of names that are only needed on some machines, on first use."""

from __future__ import annotations

import importlib
from typing import Any

_PACKAGE = __name__.rsplit(".", 2)[0]


def load(entry: str) -> Any:  # noqa: ANN401  (the caller knows the type)
    """Import and return the attribute named by ``entry``, a ``folder.module:Attribute``."""
    module, _, attribute = entry.partition(":")
    return getattr(importlib.import_module(f"{_PACKAGE}.{module}"), attribute)
