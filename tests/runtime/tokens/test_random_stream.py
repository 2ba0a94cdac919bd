"""Random numbers follow docs/bundle-format.md and match its known answers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

import numpy as np
import pytest

from skipdec import SamplingParams
from skipdec.runtime.tokens.drawing import exponentials, hash_keys, weights_of
from skipdec.runtime.tokens.sampler import Sampler, random_stream

WORD = 2**64


def philox_block(counter: int, key: tuple[int, int]) -> list[int]:
    """Return the four words of Philox 4x64-10 for a counter below 2**256 and a key."""
    c0, c1, c2, c3 = (counter >> 64 * index & (WORD - 1) for index in range(4))
    k0, k1 = key
    for _ in range(10):
        first, second = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
        c0, c1, c2, c3 = (
            second >> 64 ^ c1 ^ k0,
            second % WORD,
            first >> 64 ^ c3 ^ k1,
            first % WORD,
        )
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) % WORD, (k1 + 0xBB67AE8584CAA73B) % WORD
    return [c0, c1, c2, c3]


def uniforms(seed: int, output_index: int) -> Iterator[float]:
    """Return number t of a completion: the first 53 bits of word t; block b has counter b + 1."""
    for block in count(1):
        for word in philox_block(block, (seed, output_index)):
            yield (word >> 11) / 2**53


def test_philox_matches_published_answers() -> None:
    """Compare with Random123's known answers for counter and key of zeros, and of ones."""
    ones = WORD - 1
    assert philox_block(0, (0, 0)) == [
        0x16554D9ECA36314C,
        0xDB20FE9D672D0FDC,
        0xD7E772CEE186176B,
        0x7E68B68AEC7BA23B,
    ]
    assert philox_block(2**256 - 1, (ones, ones)) == [
        0x87B092C3013FE90B,
        0x438C3C67BE8D0224,
        0x9CC7D7C69CD777B6,
        0xA09CAEBF594F0BA0,
    ]


@pytest.mark.parametrize("seed", [0, 1, 42, 2**64 - 1])
@pytest.mark.parametrize("output_index", [0, 1, 1023])
def test_a_seeds_numbers_come_from_philox(seed: int, output_index: int) -> None:
    random = random_stream(seed, output_index)
    assert [random.random() for _ in range(103)] == list(islice(uniforms(seed, output_index), 103))


def test_numbers_match_the_specification() -> None:
    assert philox_block(1, (42, 0)) == [
        0xD1F8817D4D62880E,
        0x307266B65CC8797E,
        0xDE1F04E7F084ED03,
        0x65034A8E78CD1E59,
    ]
    assert list(islice(uniforms(42, 0), 5)) == [
        0.8201981478608876,
        0.18924562408645496,
        0.8676608148821462,
        0.3945814702827203,
        0.36812845090913937,
    ]
    assert list(islice(uniforms(42, 1), 2)) == [0.443746921343274, 0.8163920951010332]


@pytest.mark.parametrize(
    ("penalties", "expected"),
    [
        ({}, [1, 0, 0, 0, 0, 0, 1, 0]),
        (
            {"repetition_penalty": 2.0, "presence_penalty": 0.5, "frequency_penalty": 0.25},
            [1, 0, 0, 2, 2, 0, 1, 0],
        ),
    ],
    ids=["none", "penalties"],
)
def test_tokens_match_the_specification(penalties: dict[str, float], expected: list[int]) -> None:
    sampler = Sampler(SamplingParams(seed=42, **penalties), [0], 4)
    logits = np.array([2, 1, 0, -1], np.float32)
    assert [sampler.sample(logits).token_id for _ in expected] == expected


def test_weights_match_the_specification() -> None:
    weights = weights_of(np.array([-0.5, -1, -2, -3, -87.4], np.float32))
    known = ("0x1.368b30p-1", "0x1.78b564p-2", "0x1.152aaap-3", "0x1.97db0cp-5", "0x0p+0")
    assert [float(weight) for weight in weights] == [float.fromhex(text) for text in known]


def test_exponentials_match_the_specification() -> None:
    uniform = 0.8201981478608876
    assert hash_keys(uniform) == (13760641, 8211810)
    numbers = exponentials(np.array([0, 1, 2, 151935]), uniform)
    known = ("0x1.892ec8p+1", "0x1.fa2532p-2", "0x1.77602cp-1", "0x1.27ba06p-2")
    assert [float(number) for number in numbers] == [float.fromhex(text) for text in known]
