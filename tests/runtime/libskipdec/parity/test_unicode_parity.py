"""The C++ tokenizer treats every Unicode scalar value as the `tokenizers` package does."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path

import pytest
from libskipdec.token_files import tokenizer_file
from libskipdec.token_parity import answers, differences
from libskipdec.unicode_tables import SCALARS, TABLES, CharacterClass
from programs import built_program
from tokenizers import Tokenizer, normalizers

BYTE_LEVEL = ["opt_like", "llama3", "qwen2", "smollm2", "several_splits"]


@cache
def character_classes() -> dict[int, int]:
    """Return the class of every scalar value, from the table compiled into the C++ code."""
    runs = re.findall(r"\{0x([0-9A-F]+), (\d+)\}", TABLES.read_text(encoding="utf-8"))
    starts = [int(start, 16) for start, _ in runs] + [SCALARS[-1] + 1]
    return {
        scalar: int(known)
        for (_, known), start, end in zip(runs, starts, starts[1:], strict=False)
        for scalar in range(start, end)
        if not 0xD800 <= scalar < 0xE000
    }


@cache
def characters_by_kind() -> dict[int, str]:
    """Return all characters by the kinds that splits distinguish: letters, digits and so on."""
    of_kind: dict[int, list[str]] = defaultdict(list)
    for scalar, known in character_classes().items():
        of_kind[known & (7 | CharacterClass.DIGIT)].append(chr(scalar))
    assert sum(map(len, of_kind.values())) == len(SCALARS) == 1_112_064
    return {kind: "".join(characters) for kind, characters in of_kind.items()}


def piece_sizes(kind: str, folder: Path, texts: list[str]) -> Iterator[tuple[list[int], ...]]:
    """Yield the bytes of each piece of a text, in C++ and in the package."""
    path = tokenizer_file(kind, folder)
    lines = answers(built_program("tokenize"), path, [("p", text.encode()) for text in texts])[1:]
    splitter = Tokenizer.from_file(str(path)).pre_tokenizer
    for line, text in zip(lines, texts, strict=True):
        pieces = splitter.pre_tokenize_str(text)  # a character stands for a byte
        yield [int(size) for size in line.split()], [len(piece) for piece, _ in pieces]


@pytest.mark.parametrize("kind", BYTE_LEVEL)
def test_every_character_is_split_as_by_the_package(kind: str, tmp_path: Path) -> None:
    """Test all characters of a kind as one run, and each space between other characters."""
    neighbours = {0: "!", CharacterClass.LETTER: "a", CharacterClass.NUMBER: "1"}
    kinds = dict(characters_by_kind())
    spaces = kinds.pop(CharacterClass.SPACE)
    runs = [neighbours[known & 7] + characters for known, characters in kinds.items()]
    between = "".join(f"a{space}1{space}!{space}{space}\n{space}" for space in spaces)
    assert len(spaces) == 25
    for ours, right in piece_sizes(kind, tmp_path, [*runs, between]):
        assert ours == right


@pytest.mark.parametrize("form", ["{0}\n", "a{0}\u0323{0}\u0301\u1161\u11a8"])
def test_every_character_is_composed_as_by_the_package(form: str, tmp_path: Path) -> None:
    text = "".join(form.format(chr(scalar)) for scalar in SCALARS)
    path = tokenizer_file("qwen2", tmp_path)
    ours = answers(built_program("tokenize"), path, [("n", text.encode())])[1]
    assert bytes.fromhex(ours[1:]).decode() == normalizers.NFC().normalize_str(text)


def test_added_tokens_beside_any_class_of_character_match_the_package(tmp_path: Path) -> None:
    """Test the border of each class; unicode_tables.py --check tests all characters."""
    path = tokenizer_file("flagged", tmp_path)
    classes = character_classes()
    borders = [at for at in SCALARS if at and classes.get(at - 1, classes[at]) != classes[at]]
    near = [at + step for at in borders for step in (-1, 0) if at + step in classes]
    texts = ["".join(f"word{chr(at)}[left][right]{chr(at)}word" for at in near)]
    assert len(near) > 2000
    assert not list(islice(differences(built_program("tokenize"), path, texts), 3))
