"""Measure what layer skipping costs and gains: texts, metrics, times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...engines.registry import lazy_names

if TYPE_CHECKING:
    from .evaluation import evaluate

__all__ = ["evaluate"]

__getattr__ = lazy_names(__name__, {"evaluate": ".evaluation"})
