"""Candidates choose the token that all logits would, or none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from skipdec.runtime.tokens.logits import CandidateLogits
from skipdec.runtime.tokens.sampler import Candidates, Sampler
from skipdec.runtime.tokens.sampling import SamplingParams

VOCABULARY, COUNT = 40, 6


def candidates(logits: NDArray[np.float32], count: int = COUNT) -> Candidates:
    ids = np.argsort(-logits, kind="stable")[:count]
    return Candidates(logits[ids], ids, complete=count == logits.size)


def sampler(**fields: object) -> Sampler:
    return Sampler(SamplingParams(**fields), (), VOCABULARY, end_token_ids=(2,))


coarse_logits = st.lists(st.integers(-8, 8), min_size=VOCABULARY, max_size=VOCABULARY).map(
    lambda values: np.array(values, np.float32) / 2
)


@given(
    logits=coarse_logits,
    temperature=st.sampled_from([0.0, 0.6, 1.0]),
    top_k=st.sampled_from([0, 1, 3, 5, 6, 30]),
    min_p=st.sampled_from([0.0, 0.2, 0.5]),
    top_p=st.sampled_from([0.7, 1.0]),
    count=st.sampled_from([COUNT, VOCABULARY]),
)
def test_candidates_choose_the_same_token_as_all_logits(
    logits: NDArray[np.float32],
    temperature: float,
    top_k: int,
    min_p: float,
    top_p: float,
    count: int,
) -> None:
    fields = {"temperature": temperature, "top_k": top_k, "min_p": min_p, "top_p": top_p, "seed": 4}
    expected, actual = sampler(**fields), sampler(**fields)
    for step in range(3):
        shifted = np.roll(logits, step)
        chosen = actual.sample_candidates(candidates(shifted, count))
        if chosen is None:
            assert count < VOCABULARY
            chosen = actual.sample(shifted)
        assert chosen == expected.sample(shifted)


@given(
    logits=coarse_logits,
    options=st.sampled_from(
        [
            {"temperature": 0},
            {"temperature": 0, "logprobs": 1},
            {"temperature": 0.8, "top_k": 4},
            {"temperature": 0.8, "min_p": 0.3},
            {"temperature": 1, "top_p": 0.9},
            {"temperature": 0, "frequency_penalty": 0.5},
            {"temperature": 0.8, "min_tokens": 2},
        ]
    ),
)
def test_proposals_equal_those_of_all_logits(
    logits: NDArray[np.float32], options: dict[str, object]
) -> None:
    """Logits are fetched where candidates do not decide. Proposals change no token drawn later."""
    expected, actual = (sampler(seed=4, **options) for _ in range(2))
    rows = [candidates(np.roll(logits, index)) for index in range(4)]
    step = CandidateLogits(
        np.stack([row.logits for row in rows]),
        np.stack([row.token_ids for row in rows]),
        VOCABULARY,
        lambda index: np.roll(logits, index),
    )
    for start in range(3):
        for index in range(4):
            wanted = expected.propose(np.roll(logits, index), index)
            assert step.propose(index, actual, index) == wanted
            assert 0 <= step.probability(index, wanted) <= 1
        assert actual.sample(np.roll(logits, start)) == expected.sample(np.roll(logits, start))


@pytest.mark.parametrize(
    ("temperature", "number"), [(0, np.nan), (0, -np.inf), (0.8, np.nan), (0.8, np.inf)]
)
def test_logits_without_a_distribution_propose_any_token(temperature: float, number: float) -> None:
    for hidden in (slice(None), slice(3, None)):
        logits = np.zeros((1, VOCABULARY), np.float32)
        logits[0, hidden] = number
        ids = np.arange(VOCABULARY)[None]
        step = CandidateLogits(logits, ids, VOCABULARY, lambda row, held=logits: held[row])
        assert 0 <= step.propose(0, sampler(temperature=temperature), 1) < VOCABULARY


@pytest.mark.parametrize(
    ("fields", "decides"),
    [
        ({"temperature": 0}, True),
        ({"top_k": 5}, True),
        ({"top_k": 6}, False),  # the seventh may tie with the sixth
        ({"min_p": 0.5}, True),
        ({"min_p": 1e-6}, False),
        ({"top_p": 0.1}, False),
        ({"top_k": 5, "repetition_penalty": 1.1}, False),
        ({"top_k": 5, "frequency_penalty": 0.5}, False),
        ({"top_k": 5, "logprobs": 0}, False),
        ({"top_k": 5, "min_tokens": 1}, False),
    ],
)
def test_candidates_decide_only_where_no_other_token_is_possible(
    fields: dict[str, object], decides: bool
) -> None:
    logits = np.linspace(3, -3, VOCABULARY, dtype=np.float32)
    chosen = sampler(seed=0, **fields).sample_candidates(candidates(logits))
    assert (chosen is not None) == decides


def test_a_greedy_tie_with_dropped_logits_fetches_all() -> None:
    logits = np.zeros(VOCABULARY, np.float32)
    assert sampler(temperature=0).sample_candidates(candidates(logits)) is None


def test_a_greedy_tie_takes_the_lowest_id_in_any_order() -> None:
    logits = np.array([5, 5, 4, 3, 2, 1], np.float32)
    tied = Candidates(logits, np.array([9, 4, 1, 2, 3, 5]), complete=False)
    chosen = sampler(temperature=0).sample_candidates(tied)
    assert chosen is not None
    assert chosen.token_id == 4


def test_all_logits_are_fetched_only_for_rows_that_need_them() -> None:
    logits = np.stack([np.linspace(3, -3, VOCABULARY), np.zeros(VOCABULARY)]).astype(np.float32)
    rows = [candidates(row) for row in logits]
    fetched = []

    def fetch(row: int) -> NDArray[np.float32]:
        fetched.append(row)
        return logits[row]

    step = CandidateLogits(
        np.stack([row.logits for row in rows]),
        np.stack([row.token_ids for row in rows]),
        VOCABULARY,
        fetch,
    )
    assert [step.sample(row, sampler(temperature=0)).token_id for row in (0, 1)] == [0, 0]
    assert fetched == [1]
