"""Random texts on which two tokenizers must agree, and texts to train them on."""

from __future__ import annotations

import random
from collections.abc import Iterator

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
        "q\u0323\u0307 q\u0307\u0323 \u212b \u0958 \u1100\u1161\u11a8 \uac00\u11a8 \u0344 \u1f85",
        "\u2581 \u2581the <0x41> 'tIs 'VE 'Re 's\u017f '\u017f '\u017fa 'M\u0301 \r\n \n\n.\n !\r",
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
