"""N-gram tables and lookup indexes propose tokens that followed before."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from skipdec.engines.errors import BundleError
from skipdec.runtime.drafting.known_ngrams import count_ngrams, ngrams_json, parse_ngrams
from skipdec.runtime.drafting.ngrams import KnownNGrams, LookupIndex, NGramTable, NGramTables

TEXT = [1, 2, 3, 1, 2, 4, 1, 2, 4]


def table_of(text: Sequence[int], max_keys: int = 1000) -> NGramTable:
    table = NGramTable(max_keys)
    table.count(text, 0)
    return table


def test_the_most_frequent_follower_of_the_longest_ngram_is_proposed() -> None:
    table = table_of(TEXT)
    assert table.propose([1, 2], 1).tokens == [4]
    assert table.propose([9, 3, 1, 2], 1).tokens == [4], "3 1 2 was followed by 4 once"
    assert table.propose([1, 2, 3, 1, 2], 1).tokens == [4]


def test_proposals_continue_from_proposals_until_no_ngram_matches() -> None:
    table = table_of([1, 2, 3, 4])
    assert table.propose([1], 7).tokens == [2, 3, 4]
    assert table.propose([1], 2).tokens == [2, 3]
    assert table.propose([5], 7).tokens == []
    assert table.propose([], 7).tokens == []


def test_of_equal_counts_the_first_to_reach_it_is_proposed() -> None:
    table = table_of([1, 2])
    table.count([1, 3], 0)
    assert table.propose([1], 1).tokens == [2]
    table.count([1, 3], 0)
    assert table.propose([1], 1).tokens == [3]
    table.count([1, 2], 0)
    assert table.propose([1], 1).tokens == [3]


def test_followers_are_counted_only_from_the_start_index() -> None:
    table = NGramTable()
    table.count([1, 2, 3, 4], 3)
    assert table.propose([1], 1).tokens == []
    assert table.propose([3], 1).tokens == [4]
    assert table.propose([1, 2, 3], 1).tokens == [4]


def test_counting_token_by_token_equals_counting_at_once() -> None:
    whole, parts = table_of(TEXT), NGramTable()
    for end in range(1, len(TEXT) + 1):
        parts.count(TEXT[:end], end - 1)
    contexts = [TEXT[:end] for end in range(1, len(TEXT) + 1)]
    assert [parts.propose(one, 7).tokens for one in contexts] == [
        whole.propose(one, 7).tokens for one in contexts
    ]


def test_a_full_table_evicts_the_first_ngram() -> None:
    table = table_of([1, 2, 3], max_keys=3)  # 1; 2, 1 2
    assert len(table) == 3
    table.count([7, 8], 0)
    assert len(table) == 3
    assert table.propose([1], 1).tokens == []
    assert table.propose([7], 1).tokens == [8]


def test_an_ngram_counts_at_most_sixteen_followers() -> None:
    table = NGramTable()
    for follower in range(10, 30):
        table.count([1, follower], 0)
    for _ in range(5):
        table.count([1, 29], 0)
    assert table.propose([1], 1).tokens == [10]


def test_tables_of_clients_are_evicted_lru() -> None:
    tables = NGramTables()
    for client in range(32):
        tables.of_client(str(client)).count([1, client], 0)
    assert tables.of_client("0").propose([1], 1).tokens == [0]
    tables.of_client("new")
    assert tables.of_client("0").propose([1], 1).tokens == [0]
    assert tables.of_client("1").propose([1], 1).tokens == [], "the new client evicts the LRU one"
    assert tables.shared.propose([1], 1).tokens == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ([1, 2, 3, 4, 1, 2], [3, 4, 1, 2]),
        ([1, 2, 3, 1, 2, 5, 1, 2], [5, 1, 2]),
        ([5, 1, 2, 3, 9, 1, 2, 4, 5, 1, 2], [3, 9, 1, 2, 4, 5, 1]),
        ([1, 1, 1], [1]),
        ([1, 2, 3], []),
        ([1], []),
    ],
)
def test_lookup_proposes_what_followed_the_latest_longest_match(
    text: list[int], expected: list[int]
) -> None:
    assert list(LookupIndex().propose(text, 7).tokens) == expected


def test_an_index_extended_with_its_text_proposes_the_same() -> None:
    text = [1, 2, 3, 1, 2, 3, 4, 1, 2, 3, 1, 2]
    growing = LookupIndex()
    for end in range(1, len(text) + 1):
        assert list(growing.propose(text[:end], 3).tokens) == list(
            LookupIndex().propose(text[:end], 3).tokens
        )


def known_ngrams(*rows: list[int]) -> KnownNGrams:
    content = ngrams_json(rows).encode()
    return parse_ngrams(content, 10, BundleError, subject="ngrams.json", remedy="")


def test_known_ngrams_are_proposed_until_others_occur_more_often() -> None:
    table = NGramTable(known=known_ngrams([1, 2, 3, 3], [2, 3, 4, 8]))
    assert table.propose([1], 3).tokens == [2, 3]
    assert table.propose([1], 3).evidence == [3, 1]
    for _ in range(4):
        table.count([1, 5], 1)
        table.count([7, 8], 1)
    assert table.propose([1], 1).tokens == [5], "counted 4 times, 3 are known"
    assert table.propose([7], 1).tokens == [8]
    assert table.propose([2], 1).tokens == [3]


def test_the_longest_ngram_wins_whether_known_or_counted() -> None:
    table = NGramTable(known=known_ngrams([1, 2, 3, 9, 9], [4, 5, 9, 9]))
    table.count([2, 6], 1)
    table.count([3, 4, 7], 1)
    assert table.propose([1, 2], 1).tokens == [3]
    assert table.propose([3, 4], 1).tokens == [7]


def test_new_and_cleared_tables_begin_with_known_ngrams() -> None:
    tables = NGramTables(known_ngrams([1, 2, 3, 3]))
    tables.clear()
    for table in (tables.shared, tables.of_client("a")):
        assert table.propose([1], 1).tokens == [2]
        assert len(table) == 0


def test_ngrams_that_add_no_proposal_are_left_out() -> None:
    texts = [([1, 2, 3], 1), ([9, 2, 3], 2), ([1, 2, 4], 2), ([5, 2, 4], 2), ([7, 8], 1)]
    rows = count_ngrams([*texts, ([5, 2, 4], 2)])
    assert rows == [[2, 4, 3, 5], [5, 2, 4, 2, 2]], "2 2 and 1 2 add nothing, 7 occurs once"
    assert count_ngrams([*texts, ([5, 2, 4], 2)], most=1) == rows[:1]
