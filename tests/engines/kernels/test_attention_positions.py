"""Compare attention with norms and rotation with float64, and its bits between runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_node import DTYPES, Attention, Cache, expected, positions_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from one_operator import available_instruction_sets

from skipdec.engines.kernels.library import INSTRUCTION_SET_VARIABLE

Array = np.ndarray[Any, Any]

INSTRUCTION_SETS = available_instruction_sets()
SHAPES = [(8, 8), (24, 24), (64, 64), (64, 16), (80, 40), (96, 72), (128, 128), (256, 192)]  # D, R

pytestmark = pytest.mark.skipif(not INSTRUCTION_SETS, reason="the kernels were not compiled")


def rates(rotated: int) -> Array:
    """Return the rates [R/2] of the default rotary embedding."""
    return (1.0 / 10_000.0 ** (np.arange(0, rotated, 2) / rotated)).astype(np.float32)


def weight(head_size: int, seed: int) -> Array:
    """Return a norm's weight [D] without elements near 1 or 0."""
    random = np.random.default_rng(seed)
    signs, sizes = random.choice([-1, 1], head_size), random.uniform(1.5, 2, head_size)
    return (signs * sizes).astype(np.float32)


def placing(head_size: int, rotated: int, **changes: Any) -> Attention:  # noqa: ANN401
    """Return a node of one key head with norms and a rotation, whose parts all differ."""
    options = {
        "heads": 3,
        "kv_heads": 1,
        "inv_freq": rates(rotated),
        "rotary_scale": 1.25,
        "query_norm": weight(head_size, 1),
        "key_norm": weight(head_size, 2),
        "norm_epsilon": 0.5,
        "scale": 0.25 / head_size**0.5,
    }
    return Attention(head_size=head_size, **(options | changes))


def plain(head_size: int, _: int, **changes: Any) -> Attention:  # noqa: ANN401
    return Attention(head_size=head_size, **changes)


def check(node: Attention, x: Array, y: Array, cache: Cache, past: list[int]) -> None:
    """Compare y and, without rounding, the appended keys with float64."""
    np.testing.assert_allclose(y, expected(node, x, cache, past), rtol=0, atol=4e-6)
    if node.dtype != "float32":
        return
    keys = node.placed(node.columns(x)[1], node.key_norm, positions_of(past, x.shape[1]))
    held = cache.rows("key")
    for b, start in enumerate(past):
        appended = held[b, :, start : start + x.shape[1]].swapaxes(0, 1)
        np.testing.assert_allclose(appended, keys[b], rtol=0, atol=4e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("head_size", "rotated"), SHAPES)
def test_prompts_and_steps_are_rotated_to_their_own_positions(
    instruction_set: str, head_size: int, rotated: int, dtype: str
) -> None:
    node = placing(head_size, rotated, dtype=dtype, capacity=96)
    cache = node.cache(2)
    past = [0, 0]
    for tokens in (37, 1, 5, 1):
        x = node.random_tokens(2, tokens, seed=tokens)
        check(node, x, cache.step(x, past), cache, past)
        past = [length + tokens for length in past]


@pytest.mark.parametrize("position", [0, 1, 4_095, 131_071])
def test_far_positions_are_as_exact_as_near_ones(instruction_set: str, position: int) -> None:
    node = placing(24, 16, capacity=position + 2)
    cache, random = node.cache(1), np.random.default_rng(0)
    for past in (cache.key, cache.value):
        past[:, :, :position] = random.standard_normal((1, 1, position, 24))
    x = node.random_tokens(1, 2)
    check(node, x, cache.step(x, [position]), cache, [position])


@pytest.mark.parametrize("group", [1, 2, 3, 4, 7, 8])
def test_each_query_head_reads_the_key_head_of_its_group(instruction_set: str, group: int) -> None:
    node = placing(64, 64, heads=2 * group, kv_heads=2)
    cache = node.cache(2)
    past = [0, 0]
    for tokens in (9, 1, 2):
        x = node.random_tokens(2, tokens, seed=tokens)
        check(node, x, cache.step(x, past), cache, past)
        past = [length + tokens for length in past]


@pytest.mark.parametrize("part", ["inv_freq", "query_norm", "key_norm"])
def test_each_operand_is_optional(instruction_set: str, part: str) -> None:
    node = placing(64, 32, **{part: None})
    cache = node.cache(2)
    x = node.random_tokens(2, 7)
    check(node, x, cache.step(x, [0, 0]), cache, [0, 0])


def test_a_key_whose_squares_overflow_is_nan(instruction_set: str) -> None:
    node = Attention(1, 1, 8, capacity=2, key_norm=np.ones(8, np.float32))
    cache = node.cache(1)
    cache.step(np.full((1, 1, 24), 1e18, np.float32), [0])
    cache.step(np.full((1, 1, 24), 1e20, np.float32), [1])
    np.testing.assert_allclose(cache.key[0, 0, 0], 1, rtol=1e-6)
    assert np.isnan(cache.key[0, 0, 1]).all()


def test_rates_of_zero_change_no_bit_of_heads(instruction_set: str) -> None:
    still = Attention(inv_freq=np.zeros(32, np.float32))
    x = still.random_tokens(2, 9)
    np.testing.assert_array_equal(
        still.cache(2).step(x, [0, 5]), Attention().cache(2).step(x, [0, 5])
    )


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_bits_depend_only_on_the_row(monkeypatch: pytest.MonkeyPatch, data: st.DataObject) -> None:
    """Bits depend neither on the batch and its cuts nor on threads, processor or other rows."""
    head_size, rotated = data.draw(st.sampled_from(SHAPES))
    kv_heads, group = data.draw(st.sampled_from([(1, 1), (2, 2), (1, 3), (2, 4), (1, 7), (1, 8)]))
    is_placed = data.draw(st.booleans())  # whether it has norms and a rotation
    node = (placing if is_placed else plain)(
        head_size,
        rotated,
        heads=kv_heads * group,
        kv_heads=kv_heads,
        dtype=data.draw(st.sampled_from(list(DTYPES))),
        capacity=100,
        threads=data.draw(st.sampled_from([1, 3])),
        packed=data.draw(st.booleans()),
    )
    lengths = data.draw(st.lists(st.integers(1, 70), min_size=1, max_size=3))
    tokens = data.draw(st.sampled_from([1, 2, 5]))  # in the last step, at unlike depths
    x = node.random_tokens(len(lengths), max(lengths) + tokens, seed=sum(lengths))
    monkeypatch.setenv(INSTRUCTION_SET_VARIABLE, INSTRUCTION_SETS[0])
    rows = node.cache(len(lengths))
    rows.step(np.ascontiguousarray(x[:, : max(lengths)]), [0] * len(lengths))
    step = np.stack([x[b, length : length + tokens] for b, length in enumerate(lengths)])
    y = rows.step(step, lengths)
    for b, length in enumerate(lengths):
        monkeypatch.setenv(INSTRUCTION_SET_VARIABLE, data.draw(st.sampled_from(INSTRUCTION_SETS)))
        alone, past = node.cache(1), 0
        while past < length + tokens:
            chunk = data.draw(st.integers(1, length + tokens - past))
            part = alone.step(np.ascontiguousarray(x[b : b + 1, past : past + chunk]), [past])
            past += chunk
        kept = min(chunk, tokens)
        np.testing.assert_array_equal(part[0, -kept:], y[b, -kept:])
        for held, gathered in ((alone.key, rows.key), (alone.value, rows.value)):
            equal = held[0, :, :past].view(np.uint8), gathered[b, :, :past].view(np.uint8)
            np.testing.assert_array_equal(*equal)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"inv_freq": np.full(32, np.nan, np.float32)}, r"inv_freq\[0\] is nan; rates are 0 to 2"),
        ({"inv_freq": np.full(32, -1, np.float32)}, r"inv_freq\[0\] is -1"),
        ({"inv_freq": np.ones(33, np.float32)}, "at most half as many rates"),
        ({"query_norm": np.ones(32, np.float32)}, r"must be \[head size\]"),
        ({"key_norm": np.ones((1, 64), np.float32)}, r"must be \[head size\]"),
        ({"norm_epsilon": -1.0}, "norm_epsilon must be 0 or more"),
    ],
)
def test_an_unsupported_node_is_refused(changes: dict[str, Any], words: str) -> None:
    node = placing(64, 64, **changes)
    with pytest.raises(Exception, match=words):
        node.cache(1).step(node.random_tokens(1, 1), [0])
