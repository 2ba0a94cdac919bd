"""The decay cosine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from ..rounding import snap
from .decay import Curve


@dataclass(frozen=True)
class Cosine(Curve):
    """(1 − cos(π·time)) / 2: flat at both ends.

    max=8, min=4, horizon=5: the curve is 8, 7.41, 6, 4.59, 4, so 8 7 6 5 4.
    """

    def progress(self, time: Fraction) -> Fraction:
        """Half a period of the cosine."""
        return snap((1 - math.cos(math.pi * time)) / 2)
