"""The C++ tokenizer gives the same tokens as the `tokenizers` package."""

from __future__ import annotations

import csv
import re
from functools import cache
from itertools import accumulate, islice
from pathlib import Path

import pytest
from libskipdec.token_parity import answers, differences, random_texts
from libskipdec.token_texts import KINDS, tokenizer_file
from libskipdec.unicode_tables import SCALARS, TABLES, CharacterClass
from programs import built_program
from tokenizers import pre_tokenizers

from skipdec.runtime.tokens.tokenizer import Tokenizer

SHARED = Path(__file__).parents[4].parent / "shared"
CHECKPOINT = SHARED / "checkpoints/opt-e2e-12x256-full/tokenizer.json"


def first_differences(path: Path, texts: list[str]) -> list[str]:
    return list(islice(differences(built_program("tokenize"), path, texts), 3))


@pytest.fixture(params=KINDS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tokenizer_file(request.param, tmp_path)


@pytest.fixture
def opt_like(tmp_path: Path) -> Path:
    return tokenizer_file("opt_like", tmp_path)


def test_random_texts_become_the_same_tokens_and_back(path: Path) -> None:
    assert not first_differences(path, random_texts(path, 2500, seed=0))


@pytest.mark.parametrize("text", ["a" * 20_000, " " * 20_000 + "a", "the" * 10_000, "é東" * 5_000])
def test_long_runs_become_the_same_tokens(path: Path, text: str) -> None:
    assert not first_differences(path, [text])


@pytest.mark.skipif(not CHECKPOINT.is_file(), reason=f"no {CHECKPOINT}")
def test_texts_of_the_shared_files_become_the_same_tokens() -> None:
    with (SHARED / "e2e/dev.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    texts = [f"{row['mr']}<sep>{row['ref']}</s>" for row in rows]
    assert not first_differences(CHECKPOINT, texts + random_texts(CHECKPOINT, 1000, seed=1))


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


def piece_ends(texts: list[str], path: Path) -> list[list[int]]:
    lines = answers(built_program("tokenize"), path, [("p", text.encode()) for text in texts])[1:]
    return [[int(end) for end in line.split()] for line in lines]


def package_piece_ends(text: str) -> list[int]:
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    ends = accumulate(len(piece) for piece, _ in splitter.pre_tokenize_str(text))
    return list(ends)  # a stand-in is a byte


def test_every_character_is_of_the_class_that_the_package_gives_it(opt_like: Path) -> None:
    """Both treat all letters, all numbers and all others alike; the rest are spaces."""
    neighbours = {CharacterClass.LETTER: "a", CharacterClass.NUMBER: "1", 0: "!"}
    of_kind: dict[int, list[str]] = {kind: [] for kind in (*neighbours, CharacterClass.SPACE)}
    for scalar, known in character_classes().items():
        of_kind[known & 7].append(chr(scalar))
    assert sum(map(len, of_kind.values())) == len(SCALARS) == 1_112_064
    texts = [neighbours[kind] + "".join(of_kind[kind]) for kind in neighbours]
    assert all(len(package_piece_ends(text)) == 1 for text in texts)
    assert all(len(ends) == 1 for ends in piece_ends(texts, opt_like))
    spaces = "".join(f"a{space}1{space}!" for space in of_kind[CharacterClass.SPACE])
    assert (
        len(package_piece_ends(spaces)) == 5 * len(of_kind[CharacterClass.SPACE]) - 2
    )  # " 1", " !"
    assert piece_ends([spaces], opt_like) == [package_piece_ends(spaces)]


def test_words_and_spaces_beside_added_tokens_are_those_of_the_package(tmp_path: Path) -> None:
    """Tests each border of the table; scripts/libskipdec/unicode_tables.py --check tests all."""
    path = tokenizer_file("flagged", tmp_path)
    classes = character_classes()
    borders = [at for at in SCALARS if at and classes.get(at - 1, classes[at]) != classes[at]]
    near = [at + step for at in borders for step in (-1, 0) if at + step in classes]
    texts = ["".join(f"word{chr(at)}[left][right]{chr(at)}word" for at in near)]
    assert len(near) > 2000
    assert not first_differences(path, texts)


def test_text_that_is_no_utf8_is_refused_by_the_byte(opt_like: Path) -> None:
    broken = {b"\xff": 0, b"12345678901\xe9t": 11, b"a\xed\xa0\x80": 1, b"\xf0\x9f\x98": 0}
    lines = answers(built_program("tokenize"), opt_like, [("e", text) for text in broken])[1:]
    for line, at in zip(lines, broken.values(), strict=True):
        assert re.search(rf"error 1 prompt \| is no UTF-8 at byte {at} ", line)


def test_number_of_tokens_counts_each_once(path: Path) -> None:
    assert answers(built_program("tokenize"), path, [("v", b"")])[1:] == [
        str(Tokenizer.load(path).vocab_size)
    ]
