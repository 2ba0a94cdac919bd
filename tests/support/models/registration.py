"""Add files and registry lines for one test."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from skipdec.engines.registry import Registry


def new_file(monkeypatch: pytest.MonkeyPatch, name: str, attribute: object) -> str:
    """Put ``attribute`` in a module of the package; return its registry name."""
    module = ModuleType(f"skipdec.{name}")
    module.attribute = attribute  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return f"{name}:attribute"


def register(
    monkeypatch: pytest.MonkeyPatch, registry: Registry, name: str, attribute: object
) -> None:
    """Add ``attribute``, in its own file, to ``registry``."""
    entry = new_file(monkeypatch, f"a_new_{registry.noun}", attribute)
    monkeypatch.setattr(registry, "_entries", {**registry, name: entry})
