"""Measure ranges of activations for static quantisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...engines.registry import lazy_names

if TYPE_CHECKING:
    from .calibration import calibrate

__all__ = ["calibrate"]

__getattr__ = lazy_names(__name__, {"calibrate": ".calibration"})
