"""A chain of guesses by layers and then n-grams has joint chances, and results for each drafter."""

from __future__ import annotations

import pytest

from skipdec.runtime.drafting.acceptance import Guesses
from skipdec.runtime.drafting.chain import Chain, Link

LAYERS, NGRAMS = 1, 0
CHAIN = Chain(
    (
        Link(LAYERS, Guesses((5, 6), (8, 3)), (0.8, 0.4)),
        Link(NGRAMS, Guesses((7, 9), (1, 2)), (0.5, 0.25)),
    )
)


def test_a_token_is_accepted_only_after_all_before_it() -> None:
    assert CHAIN.tokens == [5, 6, 7, 9]
    assert CHAIN.chances == pytest.approx([0.8, 0.4, 0.2, 0.1])


@pytest.mark.parametrize("count", range(6))
def test_its_first_guesses_keep_their_chances(count: int) -> None:
    assert CHAIN.first(count).tokens == CHAIN.tokens[:count]
    assert CHAIN.first(count).chances == CHAIN.chances[:count]


@pytest.mark.parametrize(
    ("checked", "accepted", "expected"),
    [
        (0, 0, []),
        (1, 0, [(LAYERS, (8,), 0)]),
        (2, 1, [(LAYERS, (8, 3), 1)]),
        (3, 2, [(LAYERS, (8, 3), 2), (NGRAMS, (1,), 0)]),
        (4, 4, [(LAYERS, (8, 3), 2), (NGRAMS, (1, 2), 2)]),
    ],
)
def test_each_drafter_gets_the_results_of_its_own_guesses(
    checked: int, accepted: int, expected: list[tuple[int, tuple[int, ...], int]]
) -> None:
    assert list(CHAIN.results(checked, accepted)) == expected
