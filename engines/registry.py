"""Named choices that load on first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .errors import UsageError, did_you_mean

_PACKAGE = __name__.rsplit(".", 2)[0]


class Registry(Mapping[str, str]):
    """A read-only table of ``name -> "folder.module:Attribute"``, imported when asked for.

    >>> sizes = Registry("size", {"tensor": "engines.memory:Tensor"})
    >>> sizes.load("tensor")
    <class 'skipdec.engines.memory.Tensor'>
    """

    def __init__(self, noun: str, entries: Mapping[str, str]) -> None:
        self.noun = noun
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> str:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def load(self, name: str) -> Any:  # noqa: ANN401  (each registry documents what it holds)
        """Import and return the attribute registered under ``name``.

        Raises UsageError, naming the allowed values, for an unknown name.
        """
        if name not in self._entries:
            meant = did_you_mean(name, self._entries)
            raise UsageError(
                self.noun, f"{name!r} is unknown; {meant}allowed: {', '.join(self._entries)}"
            )
        return load(self._entries[name])


def load(entry: str) -> Any:  # noqa: ANN401  (whoever names it knows what it is)
    """Import and return the attribute that ``entry``, ``folder.module:Attribute``, names."""
    module, _, attribute = entry.partition(":")
    return getattr(importlib.import_module(f"{_PACKAGE}.{module}"), attribute)


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of ``package``: each name comes from its module, once it is used.

    ``__getattr__ = lazy_names(__name__, {"evaluate": ".evaluation"})``
    """

    def get(name: str) -> Any:  # noqa: ANN401  (the module protocol's own signature)
        if name in modules:
            return getattr(importlib.import_module(modules[name], package), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
