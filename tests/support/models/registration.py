"""Add a module to the package during one test."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest


def new_file(monkeypatch: pytest.MonkeyPatch, name: str, attribute: object) -> str:
    """Put ``attribute`` into a module of the package; return its entry for ``load``."""
    module = ModuleType(f"skipdec.{name}")
    module.attribute = attribute  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return f"{name}:attribute"
