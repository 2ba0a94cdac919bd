"""Exact rounding: two machines always agree on a plan."""

from __future__ import annotations

import math
from fractions import Fraction

_GRID = 2**40


def round_half_up(value: Fraction) -> int:
    """Round to the nearest integer, ties upward: 12.5 → 13, 12.4 → 12.

    >>> round_half_up(Fraction(25, 2)), round_half_up(Fraction(62, 5))
    (13, 12)
    """
    return math.floor(value + Fraction(1, 2))


def snap(value: float) -> Fraction:
    """Put an irrational value on a grid: the last bits of a machine's libm can't move a tie."""
    return Fraction(round(value * _GRID), _GRID)
