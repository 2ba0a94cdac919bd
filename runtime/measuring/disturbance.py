"""Detects timings that other work on the machine disturbed."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles

MAX_SPREAD = 0.25
BEYOND_BYTES = 2.5  # 1.8 to 2.2 were measured if only the fewer layers fit into a cache


def spread(seconds: Sequence[float]) -> float:
    """Return the distance of the quartiles ÷ the median; 0 for one value.

    >>> spread([1.0, 2.0, 2.0, 2.0, 4.0]), spread([1.0, 2.0, 3.0])
    (0.0, 0.5)
    """
    if len(seconds) < 2:
        return 0.0
    low, _, high = quantiles(seconds, n=4, method="inclusive")
    return (high - low) / median(seconds)


def disturbance(full_depth_seconds: Sequence[float], speedup: float, allowed: float) -> str:
    """Return the evidence that other work disturbed a timing, or "".

    ``full_depth_seconds`` are those of repetitions. ``allowed`` is the speed-up that bytes predict;
    only caches allow more (`BEYOND_BYTES`).
    """
    reasons = []
    if (seen := spread(full_depth_seconds)) > MAX_SPREAD:
        reasons.append(
            f"the times of full depth vary by {seen:.0%}; up to {MAX_SPREAD:.0%} is normal"
        )
    if speedup > BEYOND_BYTES * allowed:
        reasons.append(f"a speed-up of {speedup:.2f}× is implausible, bytes allow {allowed:.2f}×")
    return "; ".join(reasons)
