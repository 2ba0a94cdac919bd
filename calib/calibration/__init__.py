"""Ranges of activations, for static quantisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .calibration import calibrate

__all__ = ["calibrate"]


def __getattr__(name: str) -> Any:  # noqa: ANN401  (the module protocol's own signature)
    if name == "calibrate":
        from .calibration import calibrate

        return calibrate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
