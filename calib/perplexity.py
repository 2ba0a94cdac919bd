"""Perplexity, the readable form of a mean loss in nats per token."""

from __future__ import annotations

import math


def perplexity(loss: float) -> float:
    """Return exp of a mean loss, or inf if a float can't hold it."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
