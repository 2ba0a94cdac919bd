"""Tokenizer files of each kind that libskipdec implements, trained on `prose`."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from .token_texts import prose

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")


@cache
def _trained(vocab_size: int) -> str:
    """Return a tokenizer like OPT's, trained on `prose`, with `</s>` before every text, as JSON."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(prose(1, vocab_size // 2), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="</s> $A", special_tokens=[("</s>", 2)]
    )
    text: str = tokenizer.to_str()
    return text


def _tokenizer(vocab_size: int) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(_trained(vocab_size))


def _with_flags(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Add tokens with every flag."""
    tokenizer.add_tokens(
        [
            AddedToken("<sep>"),
            AddedToken("[left]", lstrip=True),
            AddedToken("[right]", rstrip=True, normalized=False),
            AddedToken("[both]", lstrip=True, rstrip=True, special=True),
            AddedToken("word", single_word=True),
            AddedToken("wor", single_word=True, lstrip=True, normalized=False),
            AddedToken("<sep><sep>", normalized=False),
            AddedToken("é東", normalized=True),
            AddedToken(" x", rstrip=True),
            AddedToken("\n", normalized=False),
            AddedToken("<mask>", lstrip=True, special=True, normalized=True),
        ]
    )
    return tokenizer


def _flagged(vocab_size: int) -> tokenizers.Tokenizer:
    return _with_flags(_tokenizer(vocab_size))


def _prefix_space(vocab_size: int) -> tokenizers.Tokenizer:
    tokenizer = _flagged(vocab_size)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer


def _without_pieces(vocab_size: int) -> tokenizers.Tokenizer:
    tokenizer = _tokenizer(vocab_size)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)]
    )
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def _ignores_merges(document: dict[str, Any]) -> None:
    model = document["model"]
    model["ignore_merges"] = True
    for token in ("they", "restaurant", "Ġfood", "Ġæ"):
        model["vocab"].setdefault(token, len(model["vocab"]))


def _legacy_merges(document: dict[str, Any]) -> None:
    model = document["model"]
    model["merges"] = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]


def _without_some_bytes(document: dict[str, Any]) -> None:
    model = document["model"]
    model["unk_token"] = "<unk>"
    missing = {"Ã", "Ġ", "3", "è", "æ"}
    kept = {token: index for token, index in model["vocab"].items() if not missing & set(token)}
    model["vocab"] = kept
    model["merges"] = [pair for pair in model["merges"] if not missing & set("".join(pair))]


def _unknown_fused(document: dict[str, Any]) -> None:
    _without_some_bytes(document)
    document["model"]["fuse_unk"] = True


def _unknown_left_out(document: dict[str, Any]) -> None:
    """Give an added token the id of another, so that there are more tokens than ids."""
    _without_some_bytes(document)
    document["model"]["unk_token"] = None
    document["added_tokens"].append(document["added_tokens"][0] | {"content": "<sep>"})


def _changed(
    change: Callable[[dict[str, Any]], None], original: Callable[[int], str] = _trained
) -> Callable[[int], str]:
    """Return a changed file with sorted keys, as the exporter writes its own."""

    def make(vocab_size: int) -> str:
        document = json.loads(original(vocab_size))
        change(document)
        return json.dumps(document, sort_keys=True, ensure_ascii=False)

    return make


def _with_pieces(
    vocab_size: int, *steps: pre_tokenizers.PreTokenizer, use_regex: bool = False
) -> tokenizers.Tokenizer:
    """Return a byte-level tokenizer with ``steps`` before its ByteLevel."""
    tokenizer = _tokenizer(vocab_size)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, byte_level])
    return tokenizer


def _llama3(vocab_size: int) -> tokenizers.Tokenizer:
    split = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
    tokenizer = _with_pieces(vocab_size, split)
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)]),
        ]
    )
    return tokenizer


def _qwen2(vocab_size: int) -> tokenizers.Tokenizer:
    tokenizer = _with_pieces(vocab_size, pre_tokenizers.Split(Regex(QWEN2), "isolated"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def _smollm2(vocab_size: int) -> tokenizers.Tokenizer:
    return _with_pieces(vocab_size, pre_tokenizers.Digits(individual_digits=True), use_regex=True)


def _several_splits(vocab_size: int) -> tokenizers.Tokenizer:
    digits = pre_tokenizers.Digits(individual_digits=False)
    split = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
    tokenizer = _with_pieces(vocab_size, digits, split, use_regex=True)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Sequence([normalizers.NFC()])])
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel()])
    return tokenizer


@cache
def _trained_characters(vocab_size: int) -> str:
    """Return a BPE of characters with byte fallback like Llama 2's, whose blank is "▁", as JSON."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 259, limit_alphabet=50, show_progress=False
    )
    tokenizer.train_from_iterator(prose(2, vocab_size // 2), trainer)
    document: dict[str, Any] = json.loads(tokenizer.to_str())
    trained = sorted(document["model"]["vocab"], key=document["model"]["vocab"].__getitem__)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *trained]
    document["model"] |= {
        "vocab": {token: index for index, token in enumerate(tokens)},
        "unk_token": "<unk>",
        "byte_fallback": True,
        "fuse_unk": True,
    }
    return json.dumps(document)


def _of_characters(vocab_size: int) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer.from_str(_trained_characters(vocab_size))
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def _llama2(vocab_size: int) -> tokenizers.Tokenizer:
    tokenizer = _of_characters(vocab_size)
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return tokenizer


def _mistral(vocab_size: int) -> tokenizers.Tokenizer:
    tokenizer = _of_characters(vocab_size)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return tokenizer


def _metaspace(vocab_size: int) -> tokenizers.Tokenizer:
    return _with_flags(_of_characters(vocab_size))


def _without_fallback(document: dict[str, Any]) -> None:
    """Remove the tokens of some bytes, so that their characters are unknown."""
    model = document["model"]
    for byte in (0x65, 0xC3, 0xE6, 0xF0):
        del model["vocab"][f"<0x{byte:02X}>"]
    document["decoder"] = {
        "type": "Sequence",
        "decoders": [
            *document["decoder"]["decoders"][:3],
            {"type": "Strip", "content": "東", "start": 3, "stop": 0},
        ],
    }


def _never_fused(document: dict[str, Any]) -> None:
    _without_fallback(document)
    document["model"]["fuse_unk"] = False
    document["model"]["ignore_merges"] = True
    document["pre_tokenizer"]["prepend_scheme"] = "never"
    document["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "e"}, "content": "<0x"},
            {"type": "Replace", "pattern": {"String": "▁"}, "content": ""},
        ],
    }


_MAKERS: dict[str, Callable[[int], str]] = {
    "opt_like": _trained,
    "flagged": lambda vocab_size: _flagged(vocab_size).to_str(),
    "prefix_space": lambda vocab_size: _prefix_space(vocab_size).to_str(pretty=True),
    "without_pieces": lambda vocab_size: _without_pieces(vocab_size).to_str(),
    "ignores_merges": _changed(_ignores_merges),
    "legacy_merges": _changed(_legacy_merges),
    "unknown": _changed(_without_some_bytes),
    "unknown_fused": _changed(_unknown_fused),
    "unknown_left_out": _changed(_unknown_left_out),
    "llama3": lambda vocab_size: _llama3(vocab_size).to_str(),
    "qwen2": lambda vocab_size: _qwen2(vocab_size).to_str(),
    "qwen2_flagged": lambda vocab_size: _with_flags(_qwen2(vocab_size)).to_str(),
    "smollm2": lambda vocab_size: _smollm2(vocab_size).to_str(),
    "several_splits": lambda vocab_size: _several_splits(vocab_size).to_str(),
    "llama2": lambda vocab_size: _llama2(vocab_size).to_str(),
    "llama2_flagged": lambda vocab_size: _with_flags(_llama2(vocab_size)).to_str(),
    "mistral": lambda vocab_size: _mistral(vocab_size).to_str(),
    "mistral_flagged": lambda vocab_size: _with_flags(_mistral(vocab_size)).to_str(),
    "metaspace": lambda vocab_size: _metaspace(vocab_size).to_str(),
    "fallback_incomplete": _changed(
        _without_fallback, lambda vocab_size: _llama2(vocab_size).to_str()
    ),
    "never_fused": _changed(_never_fused, lambda vocab_size: _metaspace(vocab_size).to_str()),
}
KINDS = tuple(_MAKERS)


def tokenizer_file(kind: str, folder: Path, vocab_size: int = 2000) -> Path:
    """Write a tokenizer.json of about ``vocab_size`` tokens, at least 400, into ``folder``."""
    path = folder / f"{kind}.json"
    path.write_text(_MAKERS[kind](vocab_size), encoding="utf-8")
    return path


def added_contents(tokenizer: tokenizers.Tokenizer) -> tuple[str, ...]:
    """Return the texts of the added tokens."""
    return tuple(token.content for token in tokenizer.get_added_tokens_decoder().values())
