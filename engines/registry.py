"""A table of named choices that are imported on first use."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from .errors import EnvironmentMismatchError, UsageError, did_you_mean

_PACKAGE = __name__.rsplit(".", 2)[0]


class Registry(Mapping[str, str]):
    """A read-only table of ``name -> "folder.module:Attribute"``, imported on first use.

    >>> sizes = Registry("size", {"tensor": "engines.memory:Tensor"})
    >>> sizes.load("tensor")
    <class 'skipdec.engines.memory.Tensor'>

    ``group``: the entry point group through which other installed packages add classes. Each class
    must be a subclass of ``base``, written as an entry. Built-in names can't be replaced: such an
    entry point is ignored with a RuntimeWarning.
    """

    def __init__(
        self, noun: str, entries: Mapping[str, str], *, group: str = "", base: str = ""
    ) -> None:
        self.noun = noun
        self._own = dict(entries)
        self._group = group
        self._base = base

    def __getitem__(self, name: str) -> str:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def load(self, name: str) -> Any:  # noqa: ANN401  (each registry documents its values)
        """Import and return the attribute registered under ``name``.

        Raises UsageError for an unknown name, and EnvironmentMismatchError for an entry point that
        can't be imported or has another type.
        """
        if name in self._own:
            return load(self._own[name])
        if name not in self._entries:
            meant = did_you_mean(name, self._entries)
            raise UsageError(
                self.noun, f"{name!r} is unknown; {meant}allowed: {', '.join(self._entries)}"
            )
        if name in self._added:
            return self._load_added(self._added[name])
        return load(self._entries[name])

    @cached_property
    def _entries(self) -> dict[str, str]:
        return self._own | {name: point.value for name, point in self._added.items()}

    @cached_property
    def _added(self) -> dict[str, EntryPoint]:
        """Return the entry points of installed packages by name."""
        added: dict[str, EntryPoint] = {}
        for point in entry_points(group=self._group) if self._group else ():
            if point.name in self._own or point.name in added:
                warnings.warn(
                    f"{_described(point)} is ignored: {self.noun} {point.name!r} exists already",
                    RuntimeWarning,
                    stacklevel=2,
                )
            else:
                added[point.name] = point
        return added

    def _load_added(self, point: EntryPoint) -> Any:  # noqa: ANN401  (see load)
        remedy = "fix or uninstall that package"
        try:
            found = point.load()
        except (ImportError, AttributeError) as error:
            problem = f"can't be imported ({error}); {remedy}"
            raise EnvironmentMismatchError(_described(point), problem) from error
        base = load(self._base)
        if not (isinstance(found, type) and issubclass(found, base)):
            wanted = f"expected a subclass of {base.__module__}.{base.__name__}"
            raise EnvironmentMismatchError(_described(point), f"is {found!r}; {wanted}; {remedy}")
        return found


def _described(point: EntryPoint) -> str:
    package = f" of {point.dist.name}" if point.dist else ""
    return f"entry point {point.group}:{point.name}{package}"


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
