"""Distributions of prompt and text lengths, shared by all figures."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Lengths:
    """Lengths of one request in tokens."""

    prompt: int
    text: int


def long_tailed(draw: random.Random) -> Lengths:
    """Draw lengths like a service's: many short texts, a few long ones.

    Prompts are lognormal with a mean of about 128; texts have a median of 64; both end at 512.
    """
    prompt = int(draw.lognormvariate(4.6, 0.7))
    text = int(draw.lognormvariate(4.16, 0.9))
    return Lengths(min(512, max(8, prompt)), min(512, max(2, text)))


def like_e2e(draw: random.Random) -> Lengths:
    """Draw lengths like E2E's development set: prompts of 37, texts of 29 ± 9."""
    return Lengths(37, max(4, round(draw.gauss(29, 9))))


WORKLOADS: dict[str, Callable[[random.Random], Lengths]] = {"tail": long_tailed, "e2e": like_e2e}
