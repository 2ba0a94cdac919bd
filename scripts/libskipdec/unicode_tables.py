"""Write the classes of characters, runtime/native/src/tokenizer/text/tables/character_classes.inc.

The classes are found by testing the `tokenizers` package on every Unicode scalar value, so that
texts are split equally whatever the Unicode version of its regular expressions. `--check` writes
nothing and exits with 1 if the file differs.

    python scripts/libskipdec/unicode_tables.py [--check]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from enum import IntFlag
from itertools import groupby
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, models, pre_tokenizers

TABLES = (
    Path(__file__).parents[2] / "runtime/native/src/tokenizer/text/tables/character_classes.inc"
)
SCALARS = [*range(0xD800), *range(0xE000, 0x110000)]
_BLOCK = 1 << 14  # characters per test
_MARK = "<mark>"


class CharacterClass(IntFlag):
    """The bits of `CharacterClass` in characters.h."""

    LETTER = 1  # \\p{L}
    NUMBER = 2  # \\p{N}
    SPACE = 4  # \\s of the pre-tokenizer
    WORD = 8  # \\w, not allowed beside an added token with "single_word"
    STRIPPED = 16  # \\s, absorbed by added tokens with "lstrip" and "rstrip"
    DIGIT = 32  # of the pre-tokenizer Digits


def classes_of_all() -> dict[int, CharacterClass]:
    """Return the class of each scalar value."""
    classes: dict[int, CharacterClass] = {}
    for start in range(0, len(SCALARS), _BLOCK):
        block = SCALARS[start : start + _BLOCK]
        letters, numbers, others = (_joined(block, neighbour) for neighbour in "a1!")
        words = _marked(block, single_word=True)
        stripped = _marked(block, lstrip=True)
        digits = _digits(block)
        for scalar in block:
            kinds = [scalar in kind for kind in (letters, numbers, others)]
            if sum(kinds) > 1:
                raise SystemExit(f"U+{scalar:04X} has two classes")
            known = CharacterClass(0)
            if not any(kinds):
                known |= CharacterClass.SPACE
            elif not kinds[2]:
                known |= CharacterClass.LETTER if kinds[0] else CharacterClass.NUMBER
            if scalar not in words:
                known |= CharacterClass.WORD
            if scalar in stripped:
                known |= CharacterClass.STRIPPED
            if scalar in digits:
                known |= CharacterClass.DIGIT
            classes[scalar] = known
    return classes


def _joined(block: list[int], neighbour: str) -> set[int]:
    """Return the characters that stay in one piece between two of ``neighbour``."""
    text = "".join(f"{neighbour}{chr(scalar)}{neighbour}\n" for scalar in block)
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces = {span for _, span in splitter.pre_tokenize_str(text)}
    return {scalar for at, scalar in enumerate(block) if (4 * at, 4 * at + 3) in pieces}


def _digits(block: list[int]) -> set[int]:
    """Return the characters that `Digits` separates."""
    text = "".join(f"a{chr(scalar)}" for scalar in block)
    splitter = pre_tokenizers.Digits(individual_digits=True)
    pieces = {span for _, span in splitter.pre_tokenize_str(text)}
    return {scalar for at, scalar in enumerate(block) if (2 * at + 1, 2 * at + 2) in pieces}


def _marked(block: list[int], *, single_word: bool = False, lstrip: bool = False) -> set[int]:
    """Return the characters after which the added token is found; with lstrip, those it absorbs."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    mark = AddedToken(_MARK, single_word=single_word, lstrip=lstrip, normalized=False)
    tokenizer.add_tokens([mark])
    width = len(_MARK) + 2
    text = "".join(f"{chr(scalar)}{_MARK}!" for scalar in block)
    found = {start for start, _ in tokenizer.encode(text).offsets}
    before = 0 if lstrip else 1
    return {scalar for at, scalar in enumerate(block) if width * at + before in found}


def ranges(classes: dict[int, CharacterClass]) -> Iterator[tuple[int, int]]:
    """Yield the first scalar value of each run of equal classes, and the class."""
    for known, run in groupby(SCALARS, key=classes.__getitem__):
        yield next(iter(run)), int(known)


def written(classes: dict[int, CharacterClass]) -> str:
    """Return the file's content."""
    entries = [f"{{0x{start:X}, {known}}}," for start, known in ranges(classes)]
    lines = [" ".join(entries[at : at + 6]) for at in range(0, len(entries), 6)]
    version = tokenizers.__version__
    return "\n".join(
        [
            "// Written by scripts/libskipdec/unicode_tables.py from the behaviour of tokenizers "
            f"{version}.",
            "// First code point of each run of characters of one class; see characters.h.",
            *lines,
            "",
        ]
    )


def write_or_check(description: str, files: Callable[[], dict[Path, str]]) -> int:
    """Write the files, or, with ``--check``, return 1 if one differs after its first line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="compare without writing")
    check: bool = parser.parse_args().check
    code = 0
    for path, text in files().items():
        if not check:
            path.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8").splitlines()[1:] != text.splitlines()[1:]:
            print(f"{path} differs from tokenizers {tokenizers.__version__}")
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(write_or_check(__doc__, lambda: {TABLES: written(classes_of_all())}))
