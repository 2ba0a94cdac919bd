"""The C++ library reads supported tokenizer.json files and refuses others with the reason."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from libskipdec.token_files import LLAMA3, tokenizer_file
from libskipdec.token_parity import answers
from programs import built_program

Change = Callable[[dict[str, Any]], object]


def refusal(tmp_path: Path, change: Change) -> str:
    """Return the error for a file damaged by ``change``; "" if it is read."""
    path = tokenizer_file("opt_like", tmp_path, 300)
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")
    first = answers(built_program("tokenize"), path, [])[0]
    return first if first.startswith("error ") else ""


NFC = {"type": "NFC"}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def sequence_of(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(steps)}


def decoder_of(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "decoders": list(steps)}


def replacement(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def split(
    pattern: dict[str, str], behavior: str = "Isolated", invert: bool = False
) -> dict[str, Any]:
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


UNSUPPORTED: dict[str, tuple[Change, str]] = {
    "unigram": (
        lambda file: file.update(model={"vocab": [["a", -1.5]], "unk_id": 0, "type": "Unigram"}),
        'has the model "Unigram"',
    ),
    "word_piece": (
        lambda file: file["model"].update(type="WordPiece", merges=None),
        'has the model "WordPiece"',
    ),
    "dropout": (lambda file: file["model"].update(dropout=0.1), "dropout"),
    "suffix": (
        lambda file: file["model"].update(end_of_word_suffix="</w>"),
        'has the end_of_word_suffix "</w>"',
    ),
    "normalizer": (
        lambda file: file.update(normalizer=sequence_of({"type": "NFKC"})),
        'the normalizer "NFKC"',
    ),
    "replaced_expression": (
        lambda file: file.update(normalizer=replacement({"Regex": "a+"}, "b")),
        'has a normalizer that replaces the expression "a+"',
    ),
    "long_replacement": (
        lambda file: file.update(normalizer=replacement({"String": "a"}, "bbbb")),
        "may lengthen a text more than 3 times",
    ),
    "long_decoder": (
        lambda file: file.update(
            pre_tokenizer=None, decoder=decoder_of(*[replacement({"String": "a"}, "aa")] * 40)
        ),
        "has a decoder that may lengthen a text more than 3 times",
    ),
    "long_prefix": (
        lambda file: file.update(normalizer={"type": "Prepend", "prepend": "a" * 17}),
        "has a normalizer that prepends",
    ),
    "vanishing_token": (
        lambda file: file.update(
            normalizer=replacement({"String": "<s>"}, ""),
            added_tokens=[file["added_tokens"][0] | {"normalized": True}],
        ),
        'the added token "<s>", of which the normalizer leaves nothing',
    ),
    "pre_tokenizer": (
        lambda file: file.update(pre_tokenizer={"type": "Whitespace"}),
        'the pre-tokenizer "Whitespace"',
    ),
    "unknown_expression": (
        lambda file: file.update(pre_tokenizer=split({"Regex": LLAMA3 + "|a"})),
        "splits at the expression",
    ),
    "split_at_text": (
        lambda file: file.update(pre_tokenizer=split({"String": LLAMA3})),
        "splits at the expression",
    ),
    "split_behavior": (
        lambda file: file.update(pre_tokenizer=split({"Regex": LLAMA3}, behavior="Removed")),
        'splits with the behavior "Removed"',
    ),
    "inverted": (
        lambda file: file.update(pre_tokenizer=split({"Regex": LLAMA3}, invert=True)),
        "inverted",
    ),
    "two_pre_tokenizers": (
        lambda file: file.update(
            pre_tokenizer={"type": "Sequence", "pretokenizers": [file["pre_tokenizer"]] * 2}
        ),
        "has a pre-tokenizer after ByteLevel",
    ),
    "first_beside_normalizer": (
        lambda file: file.update(
            normalizer=replacement({"String": "a"}, "b"), pre_tokenizer=METASPACE
        ),
        'a normalizer beside a Metaspace with prepend_scheme "first"',
    ),
    "many_steps": (
        lambda file: file.update(normalizer=sequence_of(*[sequence_of(NFC, NFC)] * 40)),
        "has a normalizer of more than 64 steps",
    ),
    "decoder": (
        lambda file: file.update(decoder={"type": "Metaspace", "replacement": "▁"}),
        'the decoder "Metaspace"',
    ),
    "decoder_order": (
        lambda file: file.update(decoder=decoder_of({"type": "Fuse"}, {"type": "ByteFallback"})),
        "has a decoder with ByteFallback in an unusual place",
    ),
    "strip_without_fuse": (
        lambda file: file.update(decoder=STRIP),
        "has a decoder with Strip in an unusual place",
    ),
    "stripped_end": (
        lambda file: file.update(decoder=decoder_of({"type": "Fuse"}, STRIP | {"stop": 1})),
        "strips the end of a text",
    ),
    "no_decoder": (lambda file: file.update(decoder=None), "no decoder"),
    "two_templates": (
        lambda file: file.update(
            post_processor={"type": "Sequence", "processors": [file["post_processor"]] * 2}
        ),
        "has two post-processors that add tokens",
    ),
    "no_text": (
        lambda file: file["post_processor"]["single"].pop(),
        "has a template without the text, or with two",
    ),
}


@pytest.mark.parametrize("kind", list(UNSUPPORTED))
def test_an_unsupported_tokenizer_is_refused_with_the_reason(kind: str, tmp_path: Path) -> None:
    change, words = UNSUPPORTED[kind]
    message = refusal(tmp_path, change)
    assert words in message
    assert message.endswith("; this library does not implement it")


def _without(*keys: str) -> Change:
    def change(file: dict[str, Any]) -> None:
        for key in keys[:-1]:
            file = file[key]
        del file[keys[-1]]

    return change


EQUAL_TOKENS = [
    {"id": 300 + index, "content": content, "normalized": True, "special": False}
    | {"single_word": False, "lstrip": False, "rstrip": False}
    for index, content in enumerate(("é", "e\u0301"))
]
MALFORMED: dict[str, tuple[Change, str]] = {
    "version": (lambda file: file.update(version="2.0"), 'version: is "2.0"; allowed: "1.0"'),
    "no_model": (_without("model"), "model: is missing"),
    "no_vocab": (_without("model", "vocab"), "model: lacks vocab or merges"),
    "vocab_is_list": (lambda file: file["model"].update(vocab=[]), "lacks vocab or merges"),
    "vocab_is_null": (lambda file: file["model"].update(vocab=None), "lacks vocab or merges"),
    "id_is_text": (lambda file: file["model"]["vocab"].update(a="1"), "model.vocab is no object"),
    "id_is_negative": (lambda file: file["model"]["vocab"].update(a=-1), "model.vocab is no"),
    "id_is_huge": (lambda file: file["model"]["vocab"].update(a=1 << 24), "the id 16777216;"),
    "id_comes_twice": (lambda file: file["model"]["vocab"].update(zzz=7), "have the id 7"),
    "long_token": (
        lambda file: file["model"]["vocab"].update({"a" * 65537: 9999}),
        "a token of 65537 bytes; allowed: 65536",
    ),
    "unknown_merge": (
        lambda file: file["model"]["merges"].append(["a", "qqq"]),
        'model.merges: needs the token "aqqq", which vocab lacks',
    ),
    "merge_without_result": (
        lambda file: file["model"]["merges"].append(["!", "!"]),
        'model.merges: needs the token "!!", which vocab lacks',
    ),
    "merge_of_three": (
        lambda file: file["model"]["merges"].append(["a", "b", "c"]),
        "more than two tokens in a pair",
    ),
    "merge_of_one": (lambda file: file["model"]["merges"].append(["a"]), "a pair of one token"),
    "mixed_merges": (lambda file: file["model"]["merges"].append("a b"), "pairs and strings"),
    "merges_are_text": (lambda file: file["model"].update(merges="a b"), "lacks vocab or merges"),
    "merge_is_number": (lambda file: file["model"].update(merges=[1]), "model.merges is no list"),
    "merge_is_text": (lambda file: file["model"].update(merges=["abc"]), "not two tokens with a"),
    "added_without_flag": (
        _without("added_tokens", 0, "lstrip"),  # type: ignore[arg-type]
        "added_tokens.lstrip: is missing",
    ),
    "added_twice": (
        lambda file: file["added_tokens"].append(file["added_tokens"][0]),
        'added_tokens: has "<s>" twice',
    ),
    "much_added": (
        lambda file: file["added_tokens"].append(
            file["added_tokens"][0] | {"content": "a" * 300_000}
        ),
        "more than 262144 bytes",
    ),
    "template_lacks_token": (
        _without("post_processor", "special_tokens", "</s>"),
        'post_processor.special_tokens: lacks "</s>"',
    ),
    "unknown_field": (lambda file: file.update(new_field={"a": [1, 2]}), "new_field: is unknown"),
    "two_texts": (
        lambda file: file["post_processor"]["single"].append(
            {"Sequence": {"id": "B", "type_id": 0}}
        ),
        "post_processor.single: has a second text",
    ),
    "add_prefix_space": (
        lambda file: file["pre_tokenizer"].update(add_prefix_space=1),
        "pre_tokenizer.add_prefix_space: is 1; allowed: true, false",
    ),
    "two_characters": (
        lambda file: file.update(pre_tokenizer=METASPACE | {"replacement": "ab"}),
        'pre_tokenizer.replacement: is "ab"; allowed: one character',
    ),
    "unknown_scheme": (
        lambda file: file.update(pre_tokenizer=METASPACE | {"prepend_scheme": "last"}),
        'pre_tokenizer.prepend_scheme: is "last"; allowed: always, first, never',
    ),
    "contradicted_scheme": (
        lambda file: file.update(pre_tokenizer=METASPACE | {"add_prefix_space": False}),
        "pre_tokenizer.add_prefix_space: is false, but prepend_scheme is first",
    ),
    "unknown_behavior": (
        lambda file: file.update(pre_tokenizer=split({"Regex": LLAMA3}, behavior="isolated")),
        'pre_tokenizer.behavior: is "isolated"; allowed: Removed, Isolated',
    ),
    "two_patterns": (
        lambda file: file.update(pre_tokenizer=split({"Regex": LLAMA3, "String": "a"})),
        "pre_tokenizer.pattern.String: is unknown",
    ),
    "negative_start": (
        lambda file: file.update(decoder=decoder_of({"type": "Fuse"}, STRIP | {"start": -1})),
        "decoder.start: is -1",
    ),
    "equal_after_normalizer": (
        lambda file: file.update(normalizer=NFC, added_tokens=EQUAL_TOKENS),
        'added_tokens: has "é" and "e\u0301", which are equal after the normalizer',
    ),
    "much_beside": (
        lambda file: file.update(other=[0] * (1 << 20)),
        "more than 1048576 values beside the model's",
    ),
}


@pytest.mark.parametrize("kind", list(MALFORMED))
def test_a_malformed_file_is_refused_with_the_reason(kind: str, tmp_path: Path) -> None:
    change, words = MALFORMED[kind]
    message = refusal(tmp_path, change)
    assert message.startswith("error 2 tokenizer.json | ")
    assert words in message
    assert message.endswith("export the model again")


VALID: dict[str, Change] = {
    "no_type": _without("model", "type"),
    "no_dropout": lambda file: file["model"].update(dropout=0.0),
    "empty_prefix": lambda file: file["model"].update(continuing_subword_prefix=""),
    "no_pre_tokenizer": lambda file: file.update(pre_tokenizer=None),
    "empty_sequences": lambda file: file.update(
        normalizer=sequence_of(), decoder=decoder_of(), pre_tokenizer=None
    ),
    "scheme_named_twice": lambda file: file.update(
        pre_tokenizer=METASPACE | {"prepend_scheme": "never", "add_prefix_space": False}
    ),
    "no_post_processor": lambda file: file.update(post_processor=None),
    "truncation": lambda file: file.update(
        truncation={"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    ),
    "empty_added": lambda file: file["added_tokens"].append(
        file["added_tokens"][0] | {"content": ""}
    ),
}


@pytest.mark.parametrize("kind", list(VALID))
def test_files_that_the_package_reads_are_read(kind: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, VALID[kind]) == ""


def test_a_file_above_the_size_limit_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b" " * ((64 << 20) + 1))
    output = subprocess.run(
        [built_program("tokenize"), path], capture_output=True, text=True
    ).stdout
    assert "is larger than 67108864 bytes, the limit" in output
