"""Plain texts are cut into exact consecutive passages without end tokens between them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skipdec.calib.data.data import (
    DataConfig,
    Example,
    PassageWords,
    load_examples,
    split_passages,
)
from skipdec.calib.data.tokenised import ExampleEncoder, tokenise
from skipdec.calib.tuning.config import TuneConfig
from skipdec.calib.tuning.plan import plan_tuning
from skipdec.engines.errors import UsageError

TEXTS = st.text(st.sampled_from("abé,. \t\n\r\u00a0\u3000"), max_size=80)
WORDS = st.integers(1, 4)


@settings(max_examples=200, deadline=None)
@given(TEXTS, WORDS, WORDS)
def test_joined_passages_are_a_prefix_of_the_text(text: str, prompt: int, completion: int) -> None:
    words = PassageWords(prompt, completion)
    passages = list(split_passages(text, words))
    joined = "".join(before + after for before, after, _ in passages)
    assert text.startswith(joined)
    assert len(text[len(joined) :].split()) < prompt + completion, "only a short rest is dropped"
    for before, after, _ in passages:
        assert len(before.split()) == prompt
        assert len(after.split()) == completion


def test_a_passage_is_named_by_the_line_of_its_first_word() -> None:
    text = "\none two\n\nthree four\nfive six"
    assert list(split_passages(text, PassageWords(1, 1))) == [
        ("\none", " two", 2),
        ("\n\nthree", " four", 4),
        ("\nfive", " six", 5),
    ]


def test_a_text_file_is_read_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes("\ufeffTo be,\r\n or not to be".encode())
    assert load_examples(DataConfig(path=path, passage_words="2+2")) == [
        Example("To be,", "\r\n or not", "notes.txt, line 1", ends=False)
    ]
    named = tmp_path / "notes.md"
    path.rename(named)
    config = DataConfig(path=named, format="text", passage_words="1+1", prompt_template="{prompt}|")
    assert [row.prompt for row in load_examples(config)] == ["To|", "\r\n or|", " to|"]


def test_a_passage_has_24_and_120_words_by_default(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("word " * 300)
    lengths = [(len(row.prompt.split()), len(row.completion.split())) for row in _load(path)]
    assert lengths == [(24, 120), (24, 120)]


def _load(path: Path) -> list[Example]:
    return load_examples(DataConfig(path=path))


class _Letters:
    """A tokenizer with one token per letter that adds 1 before a prompt."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + [ord(letter) for letter in text]


@pytest.mark.parametrize(("ends", "completion"), [(True, (99, 2)), (False, (99,))])
def test_no_end_token_follows_a_passage_that_continues(
    ends: bool, completion: tuple[int, ...]
) -> None:
    encoder = ExampleEncoder(_Letters(), (2,), 1000, 4)  # type: ignore[arg-type]
    data = tokenise([Example("a", "c", "", ends)], encoder)
    assert data.examples[0].completion_token_ids == completion
    assert data.num_truncated == 0
    short = tokenise([Example("a", "cc", "", ends)], encoder)
    assert short.examples[0].completion_token_ids == (99, 99)
    assert short.num_truncated == ends


class _LettersAlone(_Letters):
    """Drops everything but letters, like a tokenizer without an unknown token."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) for letter in text if letter.isalpha()]


@pytest.mark.parametrize(
    ("prompt", "completion", "name"), [("1", "a", "prompt"), ("a", "1", "com")]
)
def test_texts_without_tokens_are_refused_by_line(prompt: str, completion: str, name: str) -> None:
    encoder = ExampleEncoder(_LettersAlone(), (2,), 1000, 8)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=rf"line 3: the {name}\w* has no tokens"):
        tokenise([Example(prompt, completion, "a.txt, line 3", ends=False)], encoder)


def test_tuning_on_passages_learns_no_end_token(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("to be, or not to be, that is the question\n" * 8)
    config = TuneConfig(
        model=None,
        from_scratch="layers=2,width=32,heads=2,positions=48",
        vocab_size=300,
        data=DataConfig(path=path, passage_words="3+9"),
        schedule="full",
        output=tmp_path / "tuned",
        device="cpu",
    )
    plan = plan_tuning(config)
    completions = [example.completion_token_ids for example in plan.data.examples]
    assert len(completions) == 80 // 12
    assert all(plan.model.end_token_ids[0] not in completion for completion in completions)
    assert plan.data.num_truncated == 0


@pytest.mark.parametrize(
    "text", ["24", "0+5", "5+0", "-1+5", "3+x", "1+2+3", "", "1+" + "9" * 5000]
)
def test_impossible_passage_words_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"passage_words is .*allowed: PROMPT\+COMPLETION"):
        DataConfig(path="a.txt", passage_words=text)


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("short.txt", b"only four words here", {}, r"has 4 words; a passage takes 24 \+ 120"),
        ("empty.txt", b"", {}, "has 0 words"),
        ("latin.txt", "é".encode("latin-1"), {}, "is not UTF-8"),
        ("a.txt", b"a b", {"preset": "e2e"}, "a text has no columns, leave it out"),
        ("a.txt", b"a b", {"prompt_column": "x"}, "prompt_column is 'x'"),
        ("a.csv", b"", {"passage_words": "1+1"}, "is csv; only a text is cut into passages"),
        ("a.jsonl", b"", {"passage_words": "1+1"}, "is jsonl; only a text is cut"),
    ],
)
def test_texts_too_short_for_a_passage_are_refused(
    tmp_path: Path, name: str, content: bytes, options: dict[str, str], message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        load_examples(DataConfig(path=path, **options))
