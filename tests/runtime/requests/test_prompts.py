"""Prompts are read in every supported form, and anything else is refused."""

from __future__ import annotations

import re
from collections import UserDict
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import numpy as np
import pytest
from hollow_bundles import hollow_manifest

from skipdec.engines.errors import UsageError
from skipdec.exporter.checkpoint.tokenizer import byte_level_tokenizer
from skipdec.runtime.requests.request import (
    as_prompt_list,
    make_request,
    read_prompt,
)
from skipdec.runtime.tokens.sampling import SamplingParams
from skipdec.runtime.tokens.tokenizer import Tokenizer

MODEL = hollow_manifest(2).model.model_copy(update={"vocab_size": 300, "max_seq_len": 64})
_BYTES = byte_level_tokenizer(MODEL)
assert _BYTES is not None
TOKENIZER = Tokenizer.parse(_BYTES, "tokenizer")


def read(prompt: Any) -> tuple[int, ...]:  # noqa: ANN401
    return read_prompt(prompt, "prompt", MODEL, TOKENIZER)[1]


class Table:
    """Iterates its columns' names like a pandas DataFrame, without being a Mapping."""

    def keys(self) -> list[str]:
        return ["name", "food"]

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())


@pytest.mark.parametrize(
    ("prompt", "expected_text"),
    [
        ({"prompt": "ab"}, "ab"),
        ("ab", "ab"),
        (TOKENIZER.encode("ab"), None),
        ({"prompt_token_ids": TOKENIZER.encode("ab")}, None),
    ],
)
def test_every_form_of_a_prompt_gives_the_same_token_ids(
    prompt: object, expected_text: str | None
) -> None:
    text, token_ids = read_prompt(prompt, "prompt", MODEL, TOKENIZER)
    assert list(token_ids) == TOKENIZER.encode("ab")
    assert all(type(token_id) is int for token_id in token_ids)
    assert text == expected_text


@pytest.mark.parametrize("prompt", ["ab", {"prompt": "ab"}, Table()])
def test_a_single_prompt_becomes_a_list_of_one(prompt: object) -> None:
    assert as_prompt_list(prompt) == [prompt]


@pytest.mark.parametrize("ids", [np.array([5, 7]), np.int64([5, 7]), (np.uint8(5), np.int32(7))])
def test_token_ids_may_be_numpy_integers(ids: object) -> None:
    assert read(ids) == (5, 7)


@pytest.mark.parametrize(
    ("prompt", "problem"),
    [
        (UserDict(input_ids=[[5]], attention_mask=[[1]]), "keys input_ids, attention_mask"),
        ({}, "keys none"),
        (Table(), "keys name, food"),
        ({"prompt": "a", "prompt_token_ids": [5]}, "keys prompt, prompt_token_ids"),
        ({"prompt": [5]}, "has [5] under 'prompt'"),
        ({"prompt_token_ids": "ab"}, "has 'ab' under 'prompt_token_ids'"),
        (None, "prompt is None"),
        (3, "prompt is 3"),
        (b"ab", "prompt is b'ab'"),
        ([5, True], "has True at 1; allowed: integers"),
        (np.array([True]), "has True at 0"),
        (np.array([0.5]), "has 0.5 at 0"),
        ([[5]], "has [5] at 0"),
        ([5] * 65, "has 65 tokens; the bundle holds 64 positions"),
        (repeat(5), "has more than 64 tokens"),
        ("a" * 100_000_000, "has at least"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_anything_else_is_refused_and_shown(prompt: object, problem: str) -> None:
    with pytest.raises(UsageError, match=re.escape(problem)):
        read(prompt)


@pytest.mark.parametrize("prompts", [None, 3, b"ab", 0.5, [5, 6], np.array([5, 6]), repeat("a")])
def test_values_that_are_not_lists_of_prompts_are_refused(
    prompts: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skipdec.runtime.requests.request.MAX_PROMPTS", 100)
    with pytest.raises(UsageError, match=r"prompts \|"):
        as_prompt_list(prompts)


@pytest.mark.parametrize("text", ["", "a", "é" * 40, "a b  c\n" * 30, "<pad></s>" * 9])
def test_the_lower_bound_of_tokens_holds(text: str) -> None:
    assert TOKENIZER.least_tokens(text) <= len(TOKENIZER.encode(text))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"min_tokens": 1, "stop_token_ids": range(300)}, "all 300 tokens end the text"),
        ({"n": 1024, "max_tokens": 60, "logprobs": 300}, "18,493,440 log-probabilities"),
        ({"n": 1024, "max_tokens": 60, "logprobs": 17}, "1,105,920 log-probabilities"),
        ({"stop_token_ids": range(300, 9000)}, "stop_token_ids has 309; allowed: 0 to 299"),
    ],
)
def test_impossible_requests_are_refused(fields: dict[str, Any], problem: str) -> None:
    listed = {name: value if name[-3:] != "ids" else list(value) for name, value in fields.items()}
    with pytest.raises(UsageError) as caught:
        make_request(0, [5], SamplingParams(**listed), MODEL, TOKENIZER, "prompt")
    assert problem in str(caught.value)
    assert len(caught.value.problems) <= 10
