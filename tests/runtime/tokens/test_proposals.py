"""A sampler proposes future tokens without changing the tokens it draws."""

from __future__ import annotations

import numpy as np
import pytest

from skipdec import SamplingParams
from skipdec.runtime.tokens.sampler import Candidates, Sampler

KINDS = (
    {"temperature": 0},
    {"temperature": 1.1},
    {"temperature": 0.9, "top_k": 5},
    {"temperature": 0.9, "top_p": 0.8},
    {"temperature": 0.9, "min_p": 0.05},
    {"temperature": 1, "presence_penalty": 0.7, "repetition_penalty": 1.3},
    {"temperature": 0.8, "min_tokens": 9, "stop_token_ids": [1, 2, 3]},
)


def sampler(**options: object) -> Sampler:
    params = SamplingParams.model_validate({"seed": 5, "max_tokens": 20} | options)
    return Sampler(params, [4, 5], 40)


def logits(count: int = 20) -> np.ndarray:
    return np.random.default_rng(7).normal(0, 2, (count, 40)).astype(np.float32)


@pytest.mark.parametrize("options", [one for one in KINDS if "presence_penalty" not in one])
def test_a_proposal_from_full_logits_is_the_next_token(options: dict[str, object]) -> None:
    rows, one = logits(), sampler(**options)
    for start in range(0, 16, 4):
        proposed = [one.propose(rows[start + index], index) for index in range(4)]
        assert proposed == [one.sample(rows[start + index]).token_id for index in range(4)]


def test_peeked_random_numbers_are_kept_until_drawn() -> None:
    first, second = sampler(temperature=1), sampler(temperature=1)
    seen = [first.peek(index) for index in (2, 0, 1, 2)]
    assert seen[0] == seen[3]
    numbers = []
    for row in logits(3):
        numbers.append(second.peek(0))
        second.sample(row)
    assert numbers == [seen[1], seen[2], seen[0]]


def test_candidates_consume_peeked_numbers() -> None:
    first, second = (sampler(temperature=1, top_k=3) for _ in range(2))
    row = logits(1)[0]
    ids = np.argsort(-row, kind="stable")[:8]
    first.peek(4)
    for _ in range(9):
        token = first.sample_candidates(Candidates(row[ids], ids, complete=False))
        assert token == second.sample(row)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("options", KINDS)
def test_logits_without_a_distribution_propose_any_token(
    options: dict[str, object], value: float
) -> None:
    row = np.full(40, value, np.float32)
    row[7:] = value
    assert 0 <= sampler(**options).propose(row, 3) < 40
    row[:7] = 0
    assert 0 <= sampler(**options).propose(row, 0) < 40
