"""Random texts and tokenizer files on which two tokenizers have to agree."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from functools import cache

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
    (0x1D400, 0x1D7FF),  # letters and digits of mathematics
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
    """A text of up to a few hundred characters: words, spaces, scripts, runs, added tokens."""
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
    """Lines of words that repeat as those of a language do, so that merges can be learnt."""
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
    """A tokenizer of OPT's kind, learnt from `prose`: 256 bytes and merges; as JSON."""
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


def opt_like(vocab_size: int = 2000) -> tokenizers.Tokenizer:
    """As OPT's: `</s>` before every text."""
    return tokenizers.Tokenizer.from_str(_trained(vocab_size))


def _flagged() -> tokenizers.Tokenizer:
    tokenizer = opt_like()
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


def _prefix_space() -> tokenizers.Tokenizer:
    tokenizer = _flagged()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer


def _without_pieces() -> tokenizers.Tokenizer:
    tokenizer = opt_like()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)]
    )
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def _changed(change: Callable[[dict[str, object]], None]) -> tokenizers.Tokenizer:
    document = json.loads(_trained(2000))
    change(document["model"])
    return tokenizers.Tokenizer.from_str(json.dumps(document))


def _ignores_merges(model: dict[str, object]) -> None:
    model["ignore_merges"] = True
    vocabulary = model["vocab"]
    assert isinstance(vocabulary, dict)
    for token in ("Ġtheyve", "they", "restaurant", "Ġ東京"):
        vocabulary.setdefault(token, len(vocabulary))


def _legacy_merges(model: dict[str, object]) -> None:
    merges = model["merges"]
    assert isinstance(merges, list)
    model["merges"] = ["#version: 0.2", *(" ".join(pair) for pair in merges)]


def _without_some_bytes(fuse: bool) -> Callable[[dict[str, object]], None]:
    def change(model: dict[str, object]) -> None:
        model.update(unk_token="<unk>", fuse_unk=fuse)
        vocabulary, merges = model["vocab"], model["merges"]
        assert isinstance(vocabulary, dict)
        assert isinstance(merges, list)
        missing = {"Ã", "Ġ", "3", "è", "æ"}
        model["vocab"] = {
            token: place for token, place in vocabulary.items() if not missing & set(token)
        }
        model["merges"] = [pair for pair in merges if not missing & set("".join(pair))]

    return change


KINDS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "opt_like": opt_like,
    "flagged": _flagged,
    "prefix_space": _prefix_space,
    "without_pieces": _without_pieces,
    "ignores_merges": lambda: _changed(_ignores_merges),
    "legacy_merges": lambda: _changed(_legacy_merges),
    "unknown": lambda: _changed(_without_some_bytes(False)),
    "unknown_fused": lambda: _changed(_without_some_bytes(True)),
}


def added_contents(tokenizer: tokenizers.Tokenizer) -> tuple[str, ...]:
    """The texts of the added tokens."""
    return tuple(token.content for token in tokenizer.get_added_tokens_decoder().values())
