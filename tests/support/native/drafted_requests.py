"""Make requests of every kind for both runtimes, and count their drafts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from runtimes import Generated, TimedRequest

from skipdec import SamplingParams

ALONE = 1 << 20  # deltas that never come: a request starts when the earlier ones have ended
BASE = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
KINDS = (
    {},
    {"temperature": 0.3, "seed": 1},
    {"temperature": 0.8, "seed": 2, "n": 2},
    {"repetition_penalty": 1.7, "presence_penalty": 0.4},
    {"temperature": 0.5, "seed": 4, "logprobs": 4, "min_tokens": 5, "stop_token_ids": (7, 8, 9)},
    {"max_tokens": 2},
    {"max_tokens": 1},
)


def draw_prompt(length: int) -> list[int]:
    """Draw a prompt that depends only on ``length``."""
    return np.random.default_rng(length).integers(4, 131, length).tolist()


def of_every_kind(prompts: Sequence[list[int]], schedule: str) -> list[TimedRequest]:
    """Return requests of each kind and prompt that run one after another."""
    return [
        TimedRequest(prompt, BASE.model_copy(update=kind), schedule, after=ALONE)
        for kind in KINDS
        for prompt in prompts
    ]


def drafts_of(made: Sequence[Sequence[Generated]]) -> list[tuple[int, int, int]]:
    """Return passes, drafted and accepted tokens of completions with at least one pass."""
    return [each.drafts for outputs in made for each in outputs if len(each.token_ids) > 1]
