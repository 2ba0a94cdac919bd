"""Adds one entry to a registry for one test, as a new file and a new line of the table would."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from skipdec.engines.registry import Registry


def register(
    monkeypatch: pytest.MonkeyPatch, registry: Registry, name: str, attribute: object
) -> None:
    module = ModuleType(f"skipdec.a_new_file_{registry.noun}_{name}".replace("-", "_"))
    module.attribute = attribute  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    entry = f"{module.__name__.removeprefix('skipdec.')}:attribute"
    monkeypatch.setattr(registry, "_entries", {**registry, name: entry})
