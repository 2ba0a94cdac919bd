"""A Sampler has exact probabilities, penalties and log-probabilities, and its own stream."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from skipdec.engines.errors import SkipDecError, UsageError
from skipdec.runtime.tokens.drawing import keep_nucleus
from skipdec.runtime.tokens.sampler import Sampler
from skipdec.runtime.tokens.sampling import SamplingParams

LOGITS = np.array([2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -2.0, -4.0], np.float32)
CHI_SQUARE_7_AT_0_999 = 24.32  # seven degrees of freedom


def sampler(
    prompt: tuple[int, ...] = (), vocab_size: int = 8, output_index: int = 0, **fields: object
) -> Sampler:
    return Sampler(SamplingParams(**fields), prompt, vocab_size, output_index)


def tokens(source: Sampler, logits: NDArray[np.float32], count: int) -> list[int]:
    return [source.sample(logits).token_id for _ in range(count)]


def literal_distribution(
    logits: NDArray[np.float32], *, temperature: float, min_p: float, top_k: int, top_p: float
) -> NDArray[np.float64]:
    """Compute the definition literally, with full sorts."""
    scaled = logits.astype(np.float64) / temperature
    kept = np.exp(scaled - scaled.max())
    kept[kept < min_p * kept.max()] = 0.0
    if top_k > 0:
        kept[kept < np.sort(kept)[::-1][top_k - 1]] = 0.0
    order = np.argsort(-kept, kind="stable")
    before = np.cumsum(kept[order]) / kept.sum() - kept[order] / kept.sum()
    kept[order[before >= top_p]] = 0.0
    return kept / kept.sum()


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
@pytest.mark.parametrize("min_p", [0.0, 0.1])
@pytest.mark.parametrize("top_k", [0, 4])
@pytest.mark.parametrize("top_p", [0.8, 1.0])
def test_frequencies_follow_the_definition(
    temperature: float, min_p: float, top_k: int, top_p: float
) -> None:
    settings = {"temperature": temperature, "min_p": min_p, "top_k": top_k, "top_p": top_p}
    expected = literal_distribution(LOGITS, **settings) * 4000
    drawn = tokens(sampler(seed=1, **settings), LOGITS, 4000)
    counts = np.bincount(drawn, minlength=8)
    assert not counts[expected == 0].any()
    possible = expected > 0
    statistic = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    assert statistic < CHI_SQUARE_7_AT_0_999


@given(
    size=st.integers(1, 1000),
    largest=st.integers(1, 50),
    seed=st.integers(0, 2**32),
    top_p=st.floats(0.01, 0.99),
)
def test_the_nucleus_has_the_fewest_largest_weights(
    size: int, largest: int, seed: int, top_p: float
) -> None:
    array = np.random.default_rng(seed).integers(0, largest + 1, size).astype(np.float32)
    array[0] = 1  # at least one
    weights = array.copy()
    keep_nucleus(weights, top_p)
    kept = np.flatnonzero(weights)
    total, mass = float(array.sum()), float(weights.sum())
    assert mass >= top_p * total * (1 - 1e-12)
    assert mass - weights[kept].min() < top_p * total * (1 + 1e-12)
    order = np.argsort(-array, kind="stable")[: kept.size]  # ties: the lower id stays
    assert kept.tolist() == sorted(order.tolist())
    assert np.array_equal(weights[kept], array[kept])


def test_greedy_takes_the_largest_logit_and_changes_none() -> None:
    logits = LOGITS[::-1].copy()
    source = sampler(temperature=0, repetition_penalty=1.5, min_tokens=2, stop_token_ids=[7])
    assert tokens(source, logits, 3) == [6, 6, 7]
    assert np.array_equal(logits, LOGITS[::-1])


@pytest.mark.parametrize(
    ("penalty", "prompt", "expected"),
    [
        # Logits 3, 2.5, -1 (the rest far below), greedy, four tokens.
        ({}, (), [0, 0, 0, 0]),
        # 3 / 1.5 = 2 < 2.5; then 2.5 / 1.5 = 1.67 < 2: token 0 from then on.
        ({"repetition_penalty": 1.5}, (), [0, 1, 0, 0]),
        # Token 0 is in the prompt, so it counts from the start.
        ({"repetition_penalty": 1.5}, (0, 0), [1, 0, 0, 0]),
        # 3 - 0.4 = 2.6 > 2.5; 3 - 0.8 = 2.2 < 2.5; 2.5 - 0.4 = 2.1 < 2.2. The prompt
        # is not counted.
        ({"frequency_penalty": 0.4}, (0, 0), [0, 0, 1, 0]),
        # 3 - 0.6 = 2.4 < 2.5; 2.5 - 0.6 = 1.9 < 2.4, once only.
        ({"presence_penalty": 0.6}, (0,), [0, 1, 0, 0]),
        # 3 / 1.2 - 0.1 - 0.1 = 2.3; 2.5 / 1.2 - 0.2 = 1.88 < 2.3 > 2.2.
        (
            {"repetition_penalty": 1.2, "frequency_penalty": 0.1, "presence_penalty": 0.1},
            (),
            [0, 1, 0, 0],
        ),
        # 3 / 1.1 = 2.73 > 2.5: presence does not count the prompt; 2.23 < 2.5; 1.77 < 2.23.
        ({"repetition_penalty": 1.1, "presence_penalty": 0.5}, (0,), [0, 1, 0, 0]),
    ],
)
def test_penalties_match_worked_examples(
    penalty: dict[str, float], prompt: tuple[int, ...], expected: list[int]
) -> None:
    logits = np.array([3, 2.5, -1, -9, -9, -9, -9, -9], np.float32)
    assert tokens(sampler(prompt, temperature=0, **penalty), logits, 4) == expected


def test_repetition_penalty_makes_a_negative_logit_more_negative() -> None:
    logits = np.array([-1.0, -1.5], np.float32)
    source = sampler((0,), vocab_size=2, temperature=0, repetition_penalty=2.0)
    assert source.sample(logits).token_id == 1


def test_penalty_counts_grow_beyond_their_first_capacity() -> None:
    logits = np.linspace(1, 0, 300, dtype=np.float32)
    source = sampler(vocab_size=300, temperature=0, presence_penalty=2.0)
    assert tokens(source, logits, 300) == list(range(300))


@pytest.mark.parametrize("temperature", [0, 1])
def test_min_tokens_masks_stop_tokens_and_end_of_text(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, min_tokens=30, stop_token_ids=[1], seed=0,
                            max_tokens=99)  # fmt: skip
    logits = np.array([9, 8, 0, 0], np.float32)
    source = Sampler(params, (), 4, end_token_ids=(0,))
    assert set(tokens(source, logits, 30)) <= {2, 3}
    assert set(tokens(source, logits, 20)) <= {0, 1}


def test_ignored_end_of_text_is_not_masked() -> None:
    params = SamplingParams(temperature=0, min_tokens=5, ignore_eos=True)
    logits = np.array([9, 8, 0, 0], np.float32)
    assert Sampler(params, (), 4, end_token_ids=(0,)).sample(logits).token_id == 0


def test_other_samplers_do_not_change_a_seeds_tokens() -> None:
    alone = tokens(sampler(seed=5), LOGITS, 50)
    first, second = sampler(seed=5), sampler(seed=6)

    def interleaved() -> Iterator[int]:
        for _ in range(50):
            second.sample(LOGITS[::-1].copy())
            yield first.sample(LOGITS).token_id

    assert list(interleaved()) == alone


def test_each_completion_of_a_request_has_its_own_stream() -> None:
    assert tokens(sampler(seed=5), LOGITS, 50) != tokens(
        sampler(seed=5, output_index=1), LOGITS, 50
    )


def test_without_a_seed_two_samplers_differ() -> None:
    flat = np.zeros(1000, np.float32)
    one, other = sampler(vocab_size=1000), sampler(vocab_size=1000)
    assert tokens(one, flat, 20) != tokens(other, flat, 20)


def test_each_token_uses_one_random_number() -> None:
    """A token's draw does not depend on the number of candidates of earlier tokens."""
    narrow = np.array([9, -9, -9, -9, -9, -9, -9, -9], np.float32)
    one, other = sampler(seed=3), sampler(seed=3)
    tokens(one, narrow, 5)
    tokens(other, LOGITS, 5)
    assert tokens(one, LOGITS, 20) == tokens(other, LOGITS, 20)


@pytest.mark.parametrize("temperature", [1e-4, 0.01])
def test_low_temperature_does_not_overflow(temperature: float) -> None:
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        assert sampler(temperature=temperature, seed=0).sample(LOGITS * 1e3).token_id == 0


def test_log_probabilities_follow_the_raw_logits() -> None:
    params = SamplingParams(temperature=0.5, top_k=1, logprobs=2, presence_penalty=1)
    source = Sampler(params, (), 8, token_text=lambda token_id: f"t{token_id}")
    token = source.sample(LOGITS)
    raw = LOGITS.astype(np.float64)
    expected = raw - np.log(np.exp(raw).sum())
    assert token.logprobs is not None
    assert list(token.logprobs) == [0, 1]
    assert [entry.rank for entry in token.logprobs.values()] == [1, 2]
    assert token.logprobs[1].decoded_token == "t1"
    for token_id, entry in token.logprobs.items():
        assert entry.logprob == pytest.approx(expected[token_id], abs=1e-6)


@pytest.mark.parametrize("count", [0, 3])
def test_chosen_token_outside_top_logprobs_has_logprob_and_rank(
    count: int,
) -> None:
    source = sampler((0, 1, 2, 3), temperature=0, repetition_penalty=100.0, logprobs=count)
    logits = LOGITS + 5  # all positive, so the prompt's tokens fall below token 4
    token = source.sample(logits)
    assert token.token_id == 4
    assert token.logprobs is not None
    assert token.logprobs[4].rank == 5
    assert list(token.logprobs) == [4, *range(count)]


def test_logprobs_are_computed_only_on_request() -> None:
    assert sampler(temperature=0).sample(LOGITS).logprobs is None


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"top_k": 2}, {"repetition_penalty": 2.0}])
@pytest.mark.parametrize(
    ("value", "text"), [(np.nan, "1 of 8 are NaN, the first at token id 3"), (np.inf, r"\+inf")]
)
def test_invalid_logits_are_an_error_that_names_the_token(
    fields: dict[str, float], value: float, text: str
) -> None:
    logits = LOGITS.copy()
    logits[3] = value
    with pytest.raises(SkipDecError, match=text):
        sampler(**fields).sample(logits)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_masked_logit_may_be_invalid_without_logprobs(value: float) -> None:
    logits = LOGITS.copy()
    logits[3] = value
    masking: dict[str, object] = {"temperature": 0, "min_tokens": 1, "stop_token_ids": [3]}
    assert sampler(**masking).sample(logits).token_id == int(LOGITS.argmax())
    with pytest.raises(SkipDecError, match="1 of 8 are"):
        sampler(**masking, logprobs=0).sample(logits)


def test_no_possible_token_is_an_error() -> None:
    with pytest.raises(SkipDecError, match="no token can be chosen"):
        sampler().sample(np.full(8, -np.inf, np.float32))


def test_logits_of_another_vocabulary_are_refused() -> None:
    with pytest.raises(UsageError, match=r"\(8,\); expected: \(9,\)"):
        sampler(vocab_size=9).sample(LOGITS)
