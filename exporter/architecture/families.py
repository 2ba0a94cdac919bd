"""The published checkpoints of all families, known without the hub."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .architecture import ARCHITECTURES, Architecture


def short_names() -> tuple[str, ...]:
    """``opt-125m`` ...: the last parts of all hub ids."""
    return tuple(hub_id.rpartition("/")[2] for hub_id in _published())


def hub_id(model: str) -> str:
    """Return the hub id of a short name; any other text is returned unchanged.

    >>> hub_id("opt-1.3b"), hub_id("me/my-opt")
    ('facebook/opt-1.3b', 'me/my-opt')
    """
    return next((known for known in _published() if known.endswith(f"/{model}")), model)


def family_config(model: str) -> dict[str, Any] | None:
    """Return config.json of a published model by short name or hub id; None for any other."""
    config = _published().get(hub_id(model))
    return None if config is None else dict(config)


def _published() -> Mapping[str, Mapping[str, Any]]:
    published: dict[str, Mapping[str, Any]] = {}
    for model_type in ARCHITECTURES:
        architecture: Architecture = ARCHITECTURES.load(model_type)
        published |= architecture.published
    return published
