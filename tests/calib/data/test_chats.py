"""Rows with messages become conversations, tokenised by the chat template."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chat_templates import TEMPLATES, byte_tokenizer
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import models, pre_tokenizers

from skipdec.calib.data.chats import Conversation
from skipdec.calib.data.data import DataConfig, Example, load_examples
from skipdec.calib.data.tokenised import ExampleEncoder, PromptTemplate, tokenise
from skipdec.calib.evaluation.inputs import ReferencedPrompt, read_prompts
from skipdec.engines.errors import UsageError
from skipdec.runtime.tokens.chat import ChatTemplate
from skipdec.runtime.tokens.tokenizer import Tokenizer

ASKED = {"role": "user", "content": "1 + 1?"}
ANSWER = {"role": "assistant", "content": "2."}
END = 5  # "<|im_end|>" of the tests' tokenizer


def load(path: Path, *rows: dict[str, Any], **options: Any) -> list[Example]:  # noqa: ANN401
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_examples(DataConfig(path=path, **options))


def chat_tokenizer(source: str = TEMPLATES["chatml"], raw: RawTokenizer | None = None) -> Tokenizer:
    tokenizer = Tokenizer(raw or byte_tokenizer())
    tokenizer.chat = ChatTemplate(
        source, tokenizer, special_tokens={"bos_token": "<s>", "eos_token": "</s>"}
    )
    return tokenizer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.jsonl"


def test_the_last_answer_completes_the_messages_before_it(path: Path) -> None:
    system = {"role": "system", "content": [{"type": "text", "text": "Be brief."}], "name": None}
    found = load(path, {"messages": [system, ASKED, ANSWER], "id": 7})
    conversation = Conversation((("system", "Be brief."), ("user", "1 + 1?")))
    assert found == [Example(conversation, "2.", "chats.jsonl, line 1")]
    assert str(conversation) == "system: Be brief.\nuser: 1 + 1?"


def test_chats_and_prompts_share_a_file_and_equal_chats_are_grouped(path: Path) -> None:
    chat = {"messages": [ASKED, ANSWER]}
    other = {"messages": [ASKED, {"role": "assistant", "content": "Two."}]}
    load(path, chat, {"prompt": "user: 1 + 1?", "completion": "three"}, other)
    conversation = Conversation((("user", "1 + 1?"),))
    grouped = (
        ReferencedPrompt(conversation, ("2.", "Two."), "chats.jsonl, line 1"),
        ReferencedPrompt("user: 1 + 1?", ("three",), "chats.jsonl, line 2"),
    )
    assert read_prompts(DataConfig(path=path), limit=None) == grouped
    assert read_prompts(DataConfig(path=path), limit=1) == grouped[:1]


@pytest.mark.parametrize(
    ("row", "options"),
    [
        ({"prompt": "a", "completion": "b", "messages": "x"}, {}),
        ({"prompt": "a", "text": "b", "messages": "x"}, {"completion_column": "text"}),
        ({"mr": "a", "ref": "b", "messages": "x"}, {"preset": "e2e"}),
    ],
)
def test_named_or_complete_columns_take_precedence_over_messages(
    row: dict[str, Any], options: dict[str, Any], path: Path
) -> None:
    assert load(path, row, **options) == [Example("a", "b", "chats.jsonl, line 1")]


@pytest.mark.parametrize(
    ("messages", "options", "problem"),
    [
        ("hello", {}, "messages is 'hello'; allowed: a list"),
        ([ASKED], {}, "messages do not end in an assistant's answer"),
        ([ASKED, {"role": "assistant", "content": " "}], {}, "do not end in an assistant's answer"),
        ([ANSWER], {}, "messages are only an answer"),
        ([{"role": "tool", "content": "x"}, ANSWER], {}, "messages has role 'tool' at 0"),
        ([ASKED | {"content": "\ud800"}, ANSWER], {}, "messages hold half of a surrogate pair"),
        ([ASKED, ANSWER], {"prompt_template": "{prompt}?"}, "leave out prompt_template"),
        ([ASKED, ANSWER], {"completion_template": " {completion}"}, "leave out completion_temp"),
    ],
)
def test_messages_without_an_answered_chat_are_refused_by_line(
    messages: object, options: dict[str, Any], problem: str, path: Path
) -> None:
    with pytest.raises(UsageError, match=rf"chats.jsonl, line 2: .*{problem}"):
        load(path, {"prompt": "a", "completion": "b"}, {"messages": messages}, **options)


def test_only_the_answer_and_its_end_are_the_completion(path: Path) -> None:
    examples = load(path, {"messages": [ASKED, ANSWER]})
    tokenizer = chat_tokenizer()
    data = tokenise(examples, ExampleEncoder(tokenizer, (2, END), 1000, 200))
    assert tokenizer.chat is not None
    assert data.examples[0].prompt_token_ids == tokenizer.chat.encode([ASKED]).token_ids
    answer = (*tokenizer.encode("2.", add_special_tokens=False), END)  # not the "\n" after it
    assert data.examples[0].completion_token_ids == answer
    assert data.template == PromptTemplate(is_unused=True)


def test_an_answer_without_an_end_token_gets_the_models_first(path: Path) -> None:
    examples = load(path, {"messages": [ASKED, ANSWER]})
    encoder = ExampleEncoder(chat_tokenizer(TEMPLATES["plain"]), (2, END), 1000, 200)
    (row,) = tokenise(examples, encoder).examples
    assert row.completion_token_ids[-1] == 2


def test_a_token_never_spans_the_end_of_the_prompt(path: Path) -> None:
    letters = {letter: index for index, letter in enumerate("</s>aqe:")}
    raw = RawTokenizer(models.BPE(vocab=letters | {":e": 8}, merges=[(":", "e")]))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(False, use_regex=False), None
    source = "{% for m in messages %}{{ m.role[0] ~ ':' if m.role == 'assistant' }}"
    source += "{{ m.content }}{% endfor %}{{ 'a:' if add_generation_prompt }}"
    messages = [ASKED | {"content": "q"}, ANSWER | {"content": "ee"}]
    examples = load(path, {"messages": messages})
    encoder = ExampleEncoder(chat_tokenizer(source, raw), (0,), 1000, 200)
    (row,) = tokenise(examples, encoder).examples
    assert row.completion_token_ids == (letters["e"], letters["e"], 0)


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (None, "chats.jsonl, line 2 has messages, and the model has no chat template"),
        ("{{ raise_exception('no') }}", "line 2: messages are refused by the chat template: no"),
    ],
)
def test_a_chat_that_the_model_cannot_render_is_refused_by_line(
    template: str | None, problem: str, path: Path
) -> None:
    tokenizer = Tokenizer(byte_tokenizer()) if template is None else chat_tokenizer(template)
    examples = load(path, {"prompt": "a", "completion": "b"}, {"messages": [ASKED, ANSWER]})
    with pytest.raises(UsageError, match=problem):
        tokenise(examples, ExampleEncoder(tokenizer, (2,), 1000, 200))


def test_chats_are_dropped_but_never_cut(path: Path) -> None:
    examples = load(path, {"messages": [ASKED, ANSWER]}, {"prompt": "a", "completion": "b"})
    encoder = ExampleEncoder(chat_tokenizer(), (2,), 1000, 12)
    dropped = tokenise(examples, replace(encoder, long_prompts="drop"))
    assert (len(dropped.examples), dropped.num_dropped) == (1, 1)
    with pytest.raises(UsageError, match=r"line 1: the prompt has \d+ tokens; allowed"):
        tokenise(examples, replace(encoder, long_prompts="cut"))
