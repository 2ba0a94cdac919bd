"""Imports of names that are only needed on some machines, on first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

_PACKAGE = __name__.rsplit(".", 2)[0]


def load(entry: str) -> Any:  # noqa: ANN401  (the caller knows the type)
    """Import and return the attribute named by ``entry``, a ``folder.module:Attribute``."""
    module, _, attribute = entry.partition(":")
    return getattr(importlib.import_module(f"{_PACKAGE}.{module}"), attribute)


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for ``package`` that imports each name on first use.

    ``__getattr__ = lazy_names(__name__, {"evaluate": ".evaluation"})``
    """

    def get(name: str) -> Any:  # noqa: ANN401  (the module protocol's own signature)
        if name in modules:
            return getattr(importlib.import_module(modules[name], package), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
