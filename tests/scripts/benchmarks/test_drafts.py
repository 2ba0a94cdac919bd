"""Texts of pages, their replay through drafters, and the tables of both."""

from __future__ import annotations

import pytest
from benchmarks.drafts.pages import (
    Row,
    code_rows,
    first_sentence,
    is_held_out,
    paragraphs,
    prose_rows,
    rows,
    shuffled,
    summary_rows,
)
from benchmarks.drafts.peers import compared
from benchmarks.drafts.replay import Replay, agreeing
from benchmarks.drafts.texts import Text
from benchmarks.drafts.ways import Answers, own_ways
from pages.drafts import drafts_page

from skipdec.runtime.drafting.config import parse_draft

COSTS = tuple(1 + 0.04 * further for further in range(8))
SENTENCE = "This paragraph has a first sentence of ten words here. "
PARAGRAPH = SENTENCE + "And then it goes on with many more words than that, so that it is longer."
PAGE = f"""# Heading

{PARAGRAPH}

| a | table |
|---|---|

```sh
code that is never taken as a paragraph of prose, whatever it says.
```

- A [link](https://example.org) in an item of a list, whose target is left out.
- Short.
"""


def test_paragraphs_are_prose_without_targets_of_links() -> None:
    item = "A link in an item of a list, whose target is left out."
    assert list(paragraphs(PAGE)) == [PARAGRAPH, item]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("It is exact. Nothing else is.", "It is exact."),
        ("It takes 1.5 ms, e.g. here. So be it.", "It takes 1.5 ms, e.g. here."),
        ("Only one", "Only one"),
    ],
)
def test_a_first_sentence_ends_before_a_capital(text: str, first: str) -> None:
    assert first_sentence(text) == first


def test_summaries_copy_first_sentences() -> None:
    (row,) = summary_rows("x.md", [PARAGRAPH] * 3)
    assert row.prompt == "\n\n".join([PARAGRAPH] * 3)
    assert row.completion == " ".join([SENTENCE.strip()] * 3)


def test_passages_continue_their_page() -> None:
    words = [f"w{number}" for number in range(400)]
    first, second = prose_rows("x.md", [" ".join(words)])
    assert (first.prompt + first.completion + " " + second.prompt).split() == words[:240]


def test_code_passages_are_whole_lines() -> None:
    lines = [f"line {number}\n" for number in range(40)]
    (row,) = code_rows("x.py", "".join(lines))
    assert row.prompt == "".join(lines[:16])
    assert row.completion == "".join(lines[16:32])


def test_rows_do_not_depend_on_the_order_of_pages() -> None:
    texts = {"a.md": PAGE * 9, "b.py": "x = 1\n" * 40}
    turned = dict(reversed(texts.items()))
    assert rows(texts) == rows(turned)
    assert {row.kind for row in rows(texts)} == {"prose", "code", "summaries"}


def test_rows_with_special_tokens_are_left_out() -> None:
    assert shuffled([Row("prose", "x.md", "a <sep> b", "c")]) == []


def test_a_page_is_held_out_by_its_path_alone() -> None:
    held_out = [is_held_out(f"docs/page{number}.md") for number in range(300)]
    assert 60 < sum(held_out) < 140


def test_only_guesses_before_the_first_wrong_one_agree() -> None:
    assert agreeing([4, 5, 6], [4, 5, 7, 6]) == 2
    assert agreeing([4, 5], [4]) == 1
    assert agreeing([], [4]) == 0


@pytest.mark.parametrize("draft", ["own", "lookup", "own+lookup", "own,adapt=no"])
def test_a_replay_writes_every_token_but_the_first(draft: str) -> None:
    replay = Replay(parse_draft(draft), COSTS)
    text = Text(tuple(range(20)), (*range(5, 20), 99))
    for _ in range(3):
        replay.text(text)
    assert replay.figures.tokens == 3 * 15
    assert replay.figures.passes + replay.figures.held == 3 * 15


def test_lookup_finds_what_is_copied_and_own_what_is_repeated() -> None:
    copied = Text(tuple(range(30)), tuple(range(4, 28)))
    lookup = Replay(parse_draft("lookup,adapt=no"), COSTS)
    own = Replay(parse_draft("own,adapt=no"), COSTS)
    for replay in (lookup, own):
        replay.text(copied)
    assert lookup.figures.tokens_per_pass > 4
    assert own.figures.tokens_per_pass == 1
    own.text(copied)
    assert own.figures.by_text[-1][1] < own.figures.by_text[0][1] / 3


def test_a_replay_costs_what_its_passes_cost() -> None:
    replay = Replay(parse_draft("lookup,adapt=no,tokens=1"), (1.0, 1.5, *COSTS[2:]))
    replay.text(Text((1, 2, 3, 4, 5), (1, 2, 3, 9)))
    assert replay.figures.cost == pytest.approx(1.0 + 1.5 * replay.figures.drafted)


def test_a_draft_is_held_against_its_own_engine() -> None:
    ways = own_ways(["own"])
    plain = Answers([2.0, 2.0], [[1, 2], [3, 4, 5]], [1, 2])
    drafted = Answers([1.0, 1.0], [[1, 2], [3, 4, 6]], [1, 1])
    found = compared(ways, [{ways[0].name: plain, ways[1].name: drafted}])[ways[1].name]
    assert found["equal"] == 1
    assert found["tokens_per_pass"] == 1.5
    assert found["gains"] == [2.0]


@pytest.mark.parametrize("busy", [True, False])
def test_times_of_a_busy_machine_are_not_shown(busy: bool) -> None:
    way = {
        "equal": 3,
        "equal_to_ours": 3,
        "tokens_per_pass": 2.0,
        "milliseconds_per_token": [1.0],
        "gains": [1.75],
    }
    part = {
        "kind": "peers",
        "model": "m",
        "data": "d",
        "prompts": 3,
        "max_tokens": 8,
        "threads": 1,
        "busy": busy,
        "ways": {"skipdec, `own`": way},
        "date": "",
        "commit": "",
        "versions": {},
    }
    page = drafts_page([{"processor": "P", "parts": {"x": part}}])
    assert ("1.75×" in page) is not busy
    passes = "–" if busy else "2.00"  # drafts that adapt follow measured times
    assert f"| skipdec, `own` | 3 of 3 | 3 of 3 | {passes} |" in page
