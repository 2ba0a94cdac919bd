"""Presets such as ``2x``: budgets that follow from a speed-up and the number of layers."""

from __future__ import annotations

from fractions import Fraction

from ...engines.errors import ScheduleError
from .rounding import round_half_up

_MAX_DIGITS = 40  # of a speed-up; errors show it as a float


def speedup_of(digits: str) -> Fraction:
    """Return the number before a preset's ``x``.

    Raises ScheduleError if it has more than 40 digits.
    """
    if len(digits) > _MAX_DIGITS:
        raise ScheduleError(
            f"preset {digits[:_MAX_DIGITS]}…x",
            f"has {len(digits):,} digits; allowed: {_MAX_DIGITS}, e.g. 2x or 2.5x",
        )
    return Fraction(digits)


def preset_budgets(speedup: Fraction, num_layers: int) -> tuple[int, int]:
    """Return (max, min) of skipdec's preset "k×": warm-up 1, mean depth about L/k.

    min = 2·round(L/3k), max = round(2L/k) − min. 24 layers: 2x → (16, 8), 3x → (10, 6),
    4x → (8, 4), 5x → (6, 4), really 4.8x. k does not count the prompt, the embedding and the head.

    Raises ScheduleError, naming the largest k, if min ≤ 1, max < min or max > L.
    """
    budgets = _preset_formula(speedup, num_layers)
    if budgets is None:
        presets = fitting_presets(num_layers)
        allowed = (
            f"largest possible: {presets[-1]}, smallest whole one: {presets[0]}"
            if presets
            else "no preset fits"
        )
        raise ScheduleError(
            f"preset {float(speedup):g}x",
            f"does not fit {num_layers} layers; {allowed}; "
            "or name budgets, e.g. linear:max=4,min=2,horizon=64",
        )
    return budgets


def fitting_presets(num_layers: int) -> tuple[str, ...]:
    """Return the whole presets that a model of ``num_layers`` can run.

    >>> fitting_presets(12)
    ('2x', '3x', '4x', '5x', '6x')
    """
    return tuple(
        f"{speedup}x"
        for speedup in range(1, num_layers + 1)
        if _preset_formula(Fraction(speedup), num_layers)
    )


def _preset_formula(speedup: Fraction, num_layers: int) -> tuple[int, int] | None:
    if speedup <= 0:
        return None
    smallest = 2 * round_half_up(num_layers / (3 * speedup))
    largest = round_half_up(2 * num_layers / speedup) - smallest
    fits = 1 < smallest <= largest <= num_layers
    return (largest, smallest) if fits else None
