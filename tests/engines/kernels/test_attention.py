"""Compare attention with float64, and its bits between runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_node import DTYPES, Attention, expected
from one_operator import available_instruction_sets

INSTRUCTION_SETS = available_instruction_sets()

pytestmark = pytest.mark.skipif(not INSTRUCTION_SETS, reason="the kernels were not compiled")

HEAD_SIZES = [8, 24, 64, 72, 80, 96, 120, 128, 256]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_prompts_and_steps_equal_exact_attention_over_the_cache(
    instruction_set: str, head_size: int, dtype: str
) -> None:
    node = Attention(2, 2, head_size, dtype, capacity=96)
    cache = node.cache(2)
    past = [0, 0]
    for tokens in (37, 1, 5, 1):
        x = node.random_tokens(2, tokens, seed=tokens)
        y = cache.step(x, past)
        np.testing.assert_allclose(y, expected(node, x, cache, past), rtol=0, atol=2e-6)
        past = [length + tokens for length in past]


def test_new_tokens_are_rounded_into_the_cache(instruction_set: str) -> None:
    """int8: codes of x / (max|x| / 127), ties to even; 16 bits: the nearest."""
    for dtype in DTYPES:
        node = Attention(2, 2, 72, dtype, capacity=5)
        cache = node.cache(2)
        x = node.random_tokens(2, 4)
        x[1, 2, 2 * 72 :] = 0  # a row of zeros
        cache.step(x, [0, 0])
        for name, part in zip(("key", "value"), node.columns(x)[1:], strict=True):
            new = part.transpose(0, 2, 1, 3)
            held = getattr(cache, name)[:, :, :4]
            if dtype == "int8":
                scale = np.abs(new).max(-1, keepdims=True) / np.float32(127)
                divisor = np.where(scale > 0, scale, np.float32(1))
                codes = np.rint(new / divisor).astype(np.int8)
                expected = np.concatenate([codes, scale.view(np.int8)], axis=-1)
            else:
                expected = new.astype(DTYPES[dtype][0])
            np.testing.assert_array_equal(held.view(np.uint8), expected.view(np.uint8))


def test_heads_of_long_caches_are_divided_between_threads(instruction_set: str) -> None:
    steps = []
    for threads in (1, 3):
        node = Attention(16, 16, 64, "float16", capacity=131, threads=threads)
        x, cache = node.random_tokens(1, 131), node.cache(1)
        cache.step(np.ascontiguousarray(x[:, :130]), [0])
        steps.append(cache.step(np.ascontiguousarray(x[:, 130:]), [130]))
    np.testing.assert_array_equal(*steps)


def test_ragged_rows_continue_from_their_own_lengths(instruction_set: str) -> None:
    """Padding after a row's end is overwritten and never read."""
    node = Attention(4, 2, 64, "float16", capacity=24)
    lengths = [3, 20, 11]
    x = node.random_tokens(3, 24)
    prompt = x[:, :20].copy()
    for b, length in enumerate(lengths):
        prompt[b, length:] = np.nan
    ragged = node.cache(3)
    ragged.step(prompt, [0, 0, 0])
    steps = np.stack([x[b, length : length + 4] for b, length in enumerate(lengths)])
    y = ragged.step(steps, lengths)
    for b, length in enumerate(lengths):
        whole = node.cache(1).step(x[b : b + 1, : length + 4], [0])
        np.testing.assert_array_equal(y[b], whole[0, length:])


def test_tokens_beyond_the_capacity_are_not_written(instruction_set: str) -> None:
    node = Attention(2, 2, 64, "float32", capacity=10)
    long, short = node.cache(2), node.cache(2)
    x = node.random_tokens(2, 14)
    x[:, 10:] = np.nan
    y = long.step(x, [0, 4])
    np.testing.assert_array_equal(y[:1, :10], short.step(x[:, :10], [0, 0])[:1])
    np.testing.assert_array_equal(long.key[1, :, 4:], short.key[1, :, :6])
    assert np.isnan(long.key[1, :, :4]).all()


def test_a_non_finite_row_changes_no_other(instruction_set: str) -> None:
    for dtype in DTYPES:
        node = Attention(2, 2, 64, dtype, capacity=12)
        x = node.random_tokens(3, 10)
        clean = node.cache(3).step(x, [0, 0, 0])
        x[0, 5], x[2, 3, 0] = np.nan, np.inf
        y = node.cache(3).step(x, [0, 0, 0])
        np.testing.assert_array_equal(y[0, :5], clean[0, :5])
        np.testing.assert_array_equal(y[1], clean[1])


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_non_finite_key_or_value_gives_a_non_finite_result(
    instruction_set: str, poison: float
) -> None:
    for dtype in DTYPES:
        node = Attention(2, 2, 64, dtype, capacity=12)
        for column in (2 * 64 + 3, 4 * 64 + 3):  # the first key, the first value
            x = node.random_tokens(1, 1)
            x[..., column] = poison
            y = node.cache(1).step(x, [0])
            assert not np.isfinite(y).all()


@pytest.mark.parametrize("position", [-1, 10, 2**40])
def test_a_position_outside_the_cache_is_refused(position: int) -> None:
    node = Attention(capacity=10)
    with pytest.raises(Exception, match=rf"write_indices\[1\] is {position}; .* 0 to 9"):
        node.cache(2).step(node.random_tokens(2, 1), [0, position])


def test_a_cache_not_bound_in_place_is_refused() -> None:
    node = Attention(capacity=10)
    cache = node.cache(1)
    feeds = {
        "query": node.random_tokens(1, 1),
        "past_key": cache.key,
        "past_value": cache.value,
        "write_indices": np.zeros(1, np.int64),
    }
    with pytest.raises(Exception, match="must be bound to the memory of past_key"):
        node.session().run(None, feeds)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_heads": 3}, "num_heads and kv_num_heads must be positive"),
        ({"head_size": 12}, "must be a multiple of 8"),
    ],
)
def test_an_unsupported_node_is_refused(changes: dict[str, Any], words: str) -> None:
    node = Attention(**changes)
    with pytest.raises(Exception, match=words):
        node.cache(1).step(node.random_tokens(1, 1), [0])


def test_heads_whose_width_overflows_are_refused() -> None:
    tokens = Attention(4).random_tokens(1, 1)
    with pytest.raises(Exception, match=r"num_heads \* head size is above query's columns"):
        Attention(2**58 + 4).cache(1).step(tokens, [0])  # times 64 wraps around to 256
