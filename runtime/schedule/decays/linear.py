"""The decay linear."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from .decay import Curve


@dataclass(frozen=True)
class Linear(Curve):
    """Equal falls (SkipDecode). max=8, min=4, horizon=5: 8 7 6 5 4."""

    def progress(self, time: Fraction) -> Fraction:
        """``time`` itself."""
        return time
