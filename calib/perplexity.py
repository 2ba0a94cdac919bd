"""Perplexity: what a mean loss in nats per token is to people."""

from __future__ import annotations

import math


def perplexity(loss: float) -> float:
    """Return exp of a mean loss; inf where it exceeds what a float holds."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
