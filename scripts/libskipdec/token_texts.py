"""Random texts and tokenizer files on which two tokenizers must agree."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers

_SPACES = " \t\n\r\x0b\x0c\x85\xa0\u1680\u2003\u2028\u2029\u202f\u205f\u3000\u200b\ufeff\x1c\x1f"
_SCRIPTS = (
    (0x20, 0x7E),
    (0xA1, 0x24F),
    (0x300, 0x36F),  # combining marks
    (0x370, 0x52F),
    (0x590, 0x6FF),
    (0x900, 0xDFF),
    (0xE00, 0xEFF),
    (0x1100, 0x11FF),
    (0x2000, 0x2BFF),  # punctuation, arrows, numbers in circles
    (0x3040, 0x30FF),
    (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A3),
    (0xE000, 0xF8FF),  # private
    (0xFE00, 0xFFFF),
    (0x10000, 0x107FF),
    (0x1D400, 0x1D7FF),  # mathematical letters and digits
    (0x1F300, 0x1FAFF),
    (0x20000, 0x2A6DF),
    (0xE0000, 0xE01EF),
    (0, 0x10FFFF),
)
_WORDS = [
    word
    for words in (
        "'s 't 're 've 'm 'll 'd 'S 'LL ' '' don't we'll I'm they've 's's it'd 'r 'l",
        "the restaurant name[ ], food[ price a an is I 12 3.14 1,000 _ __ -- ... ?!",
        "x² ½ Ⅷ ٣٤ ００ naïve café e\u0301 ﬁ ß İ ǆ नमस्ते 東京 안녕 مرحبا שלום",
        "👩\u200d👩\u200d👧 🇩🇪 ☃\ufe0f \u200d \ufffd",
    )
    for word in words.split(" ")
]


def random_text(source: random.Random, added: tuple[str, ...]) -> str:
    """Return a text of up to a few hundred characters: words, scripts, runs, added tokens."""
    parts: list[str] = []
    for _ in range(source.choice((0, 1, 1, 2, 3, 5, 8, 13, 21))):
        kind = source.randrange(9)
        if kind <= 2:
            parts.append(source.choice(_WORDS))
        elif kind == 3:
            parts.append("".join(source.choices(_SPACES, k=source.randint(1, 4))))
        elif kind == 4:
            parts.append(_character(source) * source.choice((1, 2, 3, 9, 40)))
        elif kind == 5 and added:
            parts.append(source.choice(added))
        elif kind == 6 and added:
            parts.append(source.choice(added)[: source.randint(1, 4)])
        elif kind == 7:
            parts.append(" ")
        else:
            script = source.choice(_SCRIPTS)
            parts.append(
                "".join(_character(source, script) for _ in range(source.choice((1, 2, 4, 8))))
            )
        if source.random() < 0.3:
            parts.append(" ")
    return "".join(parts)


def _character(source: random.Random, script: tuple[int, int] | None = None) -> str:
    scalar = source.randint(*(script or source.choice(_SCRIPTS)))
    return chr(scalar) if not 0xD800 <= scalar < 0xE000 else "\ufffd"


def prose(seed: int, num_words: int) -> Iterator[str]:
    """Return lines of words that repeat as in a language, so that merges can be trained."""
    source = random.Random(seed)
    syllables = [
        "".join(source.choices("bcdfghklmnprstvw", k=source.randint(1, 2))) + vowel
        for vowel in "aeiouyéöа東"
        for _ in range(12)
    ]
    words = ["".join(source.choices(syllables, k=source.randint(1, 5))) for _ in range(num_words)]
    words += list(_WORDS)
    for _ in range(num_words // 4):
        yield " ".join(source.choices(words, k=12)) + source.choice((".", "!", "\n\n", "  ", " 42"))


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


def _flagged(vocab_size: int) -> tokenizers.Tokenizer:
    tokenizer = _tokenizer(vocab_size)
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
    kept = {token: place for token, place in model["vocab"].items() if not missing & set(token)}
    model["vocab"] = kept
    model["merges"] = [pair for pair in model["merges"] if not missing & set("".join(pair))]


def _unknown_fused(document: dict[str, Any]) -> None:
    _without_some_bytes(document)
    document["model"]["fuse_unk"] = True


def _unknown_left_out(document: dict[str, Any]) -> None:
    """Give an added token an id of another, so that the number of tokens exceeds the ids."""
    _without_some_bytes(document)
    document["model"]["unk_token"] = None
    document["added_tokens"].append(document["added_tokens"][0] | {"content": "<sep>"})


def _changed(change: Callable[[dict[str, Any]], None]) -> Callable[[int], str]:
    """Return a changed file with sorted keys, as the exporter writes its own."""

    def make(vocab_size: int) -> str:
        document = json.loads(_trained(vocab_size))
        change(document)
        return json.dumps(document, sort_keys=True, ensure_ascii=False)

    return make


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
}
KINDS = tuple(_MAKERS)


def tokenizer_file(kind: str, folder: Path, vocab_size: int = 2000) -> Path:
    """Write a tokenizer.json of about ``vocab_size`` tokens, at least 260, into ``folder``."""
    path = folder / f"{kind}.json"
    path.write_text(_MAKERS[kind](vocab_size), encoding="utf-8")
    return path


def added_contents(tokenizer: tokenizers.Tokenizer) -> tuple[str, ...]:
    """Return the texts of the added tokens."""
    return tuple(token.content for token in tokenizer.get_added_tokens_decoder().values())
