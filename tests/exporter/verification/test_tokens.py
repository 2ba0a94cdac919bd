"""Greedy tokens may differ from the reference only at ties and within rounding."""

from __future__ import annotations

import numpy as np
import pytest

from skipdec.exporter.verification.tokens import GreedyText, compare_tokens, log_softmax


def greedy(chosen: int, logprob: float) -> list[GreedyText]:
    return [GreedyText((3,), (chosen,), ({chosen: logprob},))]


@pytest.mark.parametrize(
    ("chosen", "shift", "problem"),
    [
        (0, 0.0, None),
        (1, 0.0, None),  # 0.001 below the best: a tie
        (2, 0.0, "1 of 1 greedy tokens differ"),
        (0, 0.1, "log-probabilities are off by 0.1"),
        (0, float("nan"), "log-probabilities are off by nan"),
    ],
)
def test_tokens_may_differ_only_at_ties(chosen: int, shift: float, problem: str | None) -> None:
    logits = np.array([[5.0, 4.999, 3.0]], np.float32)
    logprob = float(log_softmax(logits)[0, chosen]) + shift
    check = compare_tokens(greedy(chosen, logprob), [logits], 0.001, required=True)
    assert [text[: len(problem or "")] for text in check.problems] == ([problem] if problem else [])


@pytest.mark.parametrize(("moved", "passes"), [(0.01, False), (0.015, True), (np.nan, False)])
def test_a_position_may_be_off_by_eight_times_the_rounding_error(
    moved: float, passes: bool
) -> None:
    logits = np.array([[5.0, 3.0, 3.0]], np.float32)
    rounded = logits + np.array([[0.0, moved, moved]], np.float32)
    logprob = float(log_softmax(logits)[0, 1]) + 0.08
    text = [GreedyText((3,), (0,), ({0: float(log_softmax(logits)[0, 0]), 1: logprob},))]
    check = compare_tokens(text, [logits], 0.001, required=True, rounded_logits=[rounded])
    assert (not check.problems) == passes
