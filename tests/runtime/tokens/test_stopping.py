"""StopChecker finds stop strings across tokens and holds back text that may begin one."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipdec.runtime.tokens.decoding import CharacterDecoder, CharacterSteps
from skipdec.runtime.tokens.sampling import SamplingParams
from skipdec.runtime.tokens.stopping import StopChecker

EOS = 0


class WordDecoder:
    """Decodes token i to the i-th word; ``held`` is text that only ``flush`` returns."""

    def __init__(self, words: list[str], held: str = "") -> None:
        self._words = words
        self._held = held

    num_held = 0

    def push(self, token_id: int) -> str:
        return self._words[token_id]

    def flush(self) -> str:
        return self._held


def checker(
    words: list[str],
    *,
    held: str = "",
    max_tokens: int = 100,
    special_ids: Mapping[str, int] | None = None,
    **fields: object,
) -> StopChecker:
    params = SamplingParams(max_tokens=max_tokens, **fields)
    decoder = WordDecoder(["<eos>", *words], held)
    return StopChecker(
        params,
        max_tokens=max_tokens,
        end_token_ids=(EOS,),
        decoder=decoder,
        special_ids=special_ids or {},
    )


def run(stop_checker: StopChecker, token_ids: list[int]) -> list[str]:
    pieces = []
    for token_id in token_ids:
        pieces.append(stop_checker.push(token_id))
        if stop_checker.finish_reason:
            break
    assert stop_checker.text == "".join(pieces)
    return pieces


def test_end_of_text_stops_without_showing_its_text() -> None:
    ended = checker(["a", "b"])
    assert run(ended, [1, 2, EOS]) == ["a", "b", ""]
    assert (ended.finish_reason, ended.stop_reason) == ("stop", None)


def test_ignored_end_of_text_does_not_stop() -> None:
    going = checker(["a"], ignore_eos=True)
    assert run(going, [1, EOS, 1]) == ["a", "<eos>", "a"]
    assert going.finish_reason is None


@pytest.mark.parametrize(("included", "last"), [(False, ""), (True, "b")])
def test_a_stop_token_is_the_reason_and_shown_only_on_request(included: bool, last: str) -> None:
    ended = checker(["a", "b"], stop_token_ids=[2], include_stop_str_in_output=included)
    assert run(ended, [1, 2]) == ["a", last]
    assert (ended.finish_reason, ended.stop_reason) == ("stop", 2)


def test_a_stop_string_may_be_a_special_token() -> None:
    special = {"<end>": 2}
    ended = checker(["a", ""], stop=["<end>", "x"], special_ids=special)
    assert run(ended, [1, 2, 1]) == ["a", ""]
    assert (ended.finish_reason, ended.stop_reason) == ("stop", "<end>")
    late = checker(["a", ""], stop="<end>", min_tokens=2, max_tokens=4, special_ids=special)
    assert run(late, [2, 2, 1, 2]) == ["", "", "a", ""]


def test_max_tokens_end_a_text_and_show_all_of_it() -> None:
    ended = checker(["a", "b"], max_tokens=2, held="\ufffd")
    assert run(ended, [1, 2, 1]) == ["a", "b\ufffd"]
    assert (ended.finish_reason, ended.stop_reason) == ("length", None)


def test_a_stop_string_across_tokens_is_held_back_and_cut() -> None:
    ended = checker(["an E", "N", "g END it"], stop="END")
    assert run(ended, [1, 2, 3]) == ["an ", "", "ENg "]
    assert (ended.finish_reason, ended.stop_reason) == ("stop", "END")


def test_an_included_stop_string_is_shown_without_delay() -> None:
    ended = checker(["an E", "N", "g END it"], stop="END", include_stop_str_in_output=True)
    assert run(ended, [1, 2, 3]) == ["an E", "N", "g END"]


def test_a_stop_string_in_the_last_token_takes_precedence() -> None:
    ended = checker(["x;"], stop=";", max_tokens=1)
    assert run(ended, [1]) == ["x"]
    assert (ended.finish_reason, ended.stop_reason) == ("stop", ";")


def test_held_back_text_is_shown_at_max_tokens() -> None:
    ended = checker(["a E"], stop="END", max_tokens=1)
    assert run(ended, [1]) == ["a E"]


def test_held_back_text_is_shown_at_end_of_text() -> None:
    ended = checker(["a E"], stop="END")
    assert run(ended, [1, EOS]) == ["a ", "E"]
    assert (ended.finish_reason, ended.stop_reason) == ("stop", None)


@pytest.mark.parametrize(
    ("stop", "reason", "text"),
    [
        (["c", "b"], "b", "a"),  # the first complete one, in any order
        (["bcd", "c"], "c", "ab"),
        (["c", "abc"], "abc", ""),  # of those complete at once, the longest
    ],
)
def test_of_several_stop_strings_the_first_complete_counts(
    stop: list[str], reason: str, text: str
) -> None:
    ended = checker(["abcd"], stop=stop)
    assert "".join(run(ended, [1])) == text
    assert ended.stop_reason == reason


def test_nothing_stops_before_min_tokens() -> None:
    ended = checker(["a;", "b"], stop=";", stop_token_ids=[2], min_tokens=3)
    assert "".join(run(ended, [1, 2, EOS, 2])) == "a;b<eos>"
    assert ended.stop_reason == 2


def test_a_stop_string_that_ends_after_min_tokens_counts() -> None:
    ended = checker(["aE", "ND"], stop="END", min_tokens=1)
    assert "".join(run(ended, [1, 2])) == "a"


def test_a_stop_string_of_byte_tokens_within_min_tokens_is_ignored() -> None:
    tokens = ["▁Hi", "<0x0A>", "▁you", "<0x0A>", "▁all"]
    steps = CharacterSteps((("▁", " "),), byte_fallback=True)
    decoder = CharacterDecoder(steps, tokens.__getitem__, lambda _: False)
    params = SamplingParams(stop="\n", min_tokens=2, max_tokens=9)
    ended = StopChecker(params, max_tokens=9, end_token_ids=(), decoder=decoder)
    assert run(ended, [0, 1, 2, 3, 4]) == [" Hi", "", "\n you", "", ""]
    assert ended.stop_reason == "\n"


def test_a_stop_string_before_min_tokens_is_not_held_back() -> None:
    assert run(checker(["a", "b"], stop=["a", "xyz"], min_tokens=1), [1]) == ["a"]


def test_without_a_tokenizer_stop_tokens_still_count() -> None:
    params = SamplingParams(stop_token_ids=[4])
    ended = StopChecker(params, max_tokens=9, end_token_ids=(), decoder=None)
    assert [ended.push(3), ended.push(4)] == ["", ""]
    assert ended.stop_reason == 4


def test_abort_shows_held_back_text_once() -> None:
    cancelled = checker(["a E"], stop="END", held="\ufffd")
    cancelled.push(1)
    assert [cancelled.abort(), cancelled.abort()] == ["E\ufffd", ""]
    assert cancelled.finish_reason == "abort"


def first_stop(text: str, stops: list[str], shown_from: int) -> tuple[int, int, str] | None:
    """Return end, start and string of the first complete stop string, character by character."""
    for end in range(shown_from + 1, len(text) + 1):
        endings = [stop for stop in stops if text[:end].endswith(stop)]
        if endings:
            longest = max(endings, key=len)
            return end, end - len(longest), longest
    return None


short_text = st.text(alphabet="ab", min_size=1, max_size=4)


@given(
    words=st.lists(short_text, min_size=1, max_size=12),
    stops=st.lists(short_text, min_size=1, max_size=3),
    included=st.booleans(),
    min_tokens=st.integers(0, 4),
)
def test_stopping_does_not_depend_on_token_boundaries(
    words: list[str], stops: list[str], included: bool, min_tokens: int
) -> None:
    stop_checker = checker(
        words,
        stop=stops,
        include_stop_str_in_output=included,
        min_tokens=min_tokens,
        max_tokens=len(words) + 10,
    )
    shown = "".join(run(stop_checker, list(range(1, len(words) + 1))))
    found = first_stop("".join(words), stops, len("".join(words[:min_tokens])))
    if found is None:
        assert stop_checker.finish_reason is None
        assert shown + stop_checker.abort() == "".join(words)
    else:
        end, start, stop = found
        assert shown == "".join(words)[: end if included else start]
        assert stop_checker.stop_reason == stop
