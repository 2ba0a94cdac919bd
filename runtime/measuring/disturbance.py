"""Detects timings that other work on the machine disturbed."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles

MOST_SPREAD = 0.25
BEYOND_BYTES = 2.5  # layers that fit into a cache which all of them don't: 1.8 to 2.2 were measured


def spread(seconds: Sequence[float]) -> float:
    """Distance of the quartiles ÷ the median, 0 for one value.

    >>> spread([1.0, 2.0, 2.0, 2.0, 4.0]), spread([1.0, 2.0, 3.0])
    (0.0, 0.5)
    """
    if len(seconds) < 2:
        return 0.0
    low, _, high = quantiles(seconds, n=4, method="inclusive")
    return (high - low) / median(seconds)


def disturbance(full_depth_seconds: Sequence[float], speedup: float, allowed: float) -> str:
    """Say what shows that a timing was disturbed; "" where nothing does.

    ``full_depth_seconds``: of the same work, again and again. ``allowed``: the speed-up that bytes
    predict, the most there is but for caches (`BEYOND_BYTES`).
    """
    reasons = []
    if (seen := spread(full_depth_seconds)) > MOST_SPREAD:
        reasons.append(
            f"the times of full depth spread by {seen:.0%}, where up to {MOST_SPREAD:.0%} is calm"
        )
    if speedup > BEYOND_BYTES * allowed:
        reasons.append(f"{speedup:.2f}× can't be, where bytes allow {allowed:.2f}×")
    return "; ".join(reasons)
