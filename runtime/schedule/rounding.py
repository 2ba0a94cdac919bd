"""Rounding that any two machines agree on."""

from __future__ import annotations

import math
from fractions import Fraction

_GRID = 2**40


def round_half_up(value: Fraction) -> int:
    """Round to the nearest integer, ties upward.

    >>> round_half_up(Fraction(25, 2)), round_half_up(Fraction(62, 5))
    (13, 12)
    """
    return math.floor(value + Fraction(1, 2))


def snap(value: float) -> Fraction:
    """Round an irrational value to a grid, so that a libm's last bits can't decide a tie."""
    return Fraction(round(value * _GRID), _GRID)
