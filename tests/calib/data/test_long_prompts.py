"""Rows longer than the model are refused, dropped, or lose the end of their prompts."""

from __future__ import annotations

import pytest
from tokenizers import Regex
from tokenizers import Tokenizer as HubTokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split, Whitespace

from skipdec.calib.data.data import Example, LongPrompts
from skipdec.calib.data.tokenised import ExampleEncoder, PromptTemplate, TokenisedData, tokenise
from skipdec.engines.errors import UsageError
from skipdec.runtime.tokens.tokenizer import Tokenizer

WORDS = {word: index for index, word in enumerate(("</s>", "a", "b", "c", "d", "TLDR"))}
EXAMPLES = (
    Example("a b\nTLDR", "c", "rows, line 1"),
    Example("a b c d\nTLDR", "c d", "rows, line 2"),
)


def tokenised(long_prompts: LongPrompts, max_length: int = 6) -> TokenisedData:
    hub = HubTokenizer(WordLevel(WORDS, unk_token="</s>"))
    hub.pre_tokenizer = Whitespace()
    tokenizer = Tokenizer.parse(hub.to_str().encode(), "words")
    template = PromptTemplate("{prompt}\nTLDR")
    encoder = ExampleEncoder(tokenizer, (0,), 1000, max_length, long_prompts, template)
    return tokenise(EXAMPLES, encoder)


def test_cut_prompts_keep_the_template_and_leave_room_for_the_completion() -> None:
    data = tokenised("cut")
    assert (data.num_cut, data.num_truncated, data.num_dropped) == (1, 0, 0)
    assert [example.prompt_token_ids for example in data.examples] == [(1, 2, 5), (1, 2, 5)]
    assert data.examples[1].completion_token_ids == (3, 4, 0)


def test_long_rows_are_dropped_and_counted() -> None:
    data = tokenised("drop")
    assert [example.source for example in data.examples] == ["rows, line 1"]
    assert data.num_dropped == 1
    with pytest.raises(UsageError, match="no examples within 3 tokens; 2 are longer"):
        tokenised("drop", max_length=3)


def test_prompts_without_room_for_a_completion_are_refused_by_default() -> None:
    with pytest.raises(
        UsageError, match="line 2: the prompt has 5 tokens; allowed: at most 4"
    ) as it:
        tokenised("refuse", max_length=5)
    assert "or set the data's long_prompts" in str(it.value)


@pytest.mark.parametrize(("max_length", "num_truncated"), [(8, 0), (7, 1)])
def test_cut_completions_are_reported(max_length: int, num_truncated: int) -> None:
    data = tokenised("refuse", max_length=max_length)
    expected = [f"cut off at the maximum length: {num_truncated} of 2 completions"]
    assert [text.split(";")[0] for text in data.warnings] == expected[:num_truncated]


@pytest.mark.parametrize("text", ["春眠不觉晓，处处闻啼鸟", "word" * 20])
def test_a_first_word_that_does_not_fit_is_cut_between_characters(text: str) -> None:
    hub = HubTokenizer(WordLevel(dict.fromkeys(text, 1) | {"</s>": 0}, unk_token="</s>"))
    hub.pre_tokenizer = Split(Regex("."), "isolated")
    tokenizer = Tokenizer.parse(hub.to_str().encode(), "letters")
    rows = [Example(text, text[:2], "rows, line 1")]
    data = tokenise(rows, ExampleEncoder(tokenizer, (0,), 2, 8, "cut"))
    assert (data.num_cut, len(data.examples[0].prompt_token_ids)) == (1, 5)


def test_cutting_is_not_advised_where_prompts_are_already_cut() -> None:
    with pytest.raises(UsageError, match=r"shorten or remove the row$"):
        tokenised("cut", max_length=1)
    (_, warning) = tokenised("cut", max_length=4).warnings
    assert warning.endswith("shorten or remove these rows")
