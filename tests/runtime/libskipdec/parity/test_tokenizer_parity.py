"""The C++ tokenizer gives the same tokens as the `tokenizers` package."""

from __future__ import annotations

import csv
import re
from itertools import islice
from pathlib import Path

import pytest
from libskipdec.token_files import KINDS, tokenizer_file
from libskipdec.token_parity import answers, differences, random_texts
from programs import built_program

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


def test_random_texts_are_encoded_and_decoded_alike(path: Path) -> None:
    assert not first_differences(path, random_texts(path, 1000, seed=0))


LONG_RUNS = [
    "a" * 5_000,
    " " * 5_000 + "a",
    "the" * 2_500,
    "é東" * 1_250,
    "e\u0301\u0323" * 1_250,
]
LONG_RUNS += ["\n" * 5_000, "\r\n a" * 1_250, "1" * 5_000, "▁" * 5_000, "\u0301\u0323" * 2_500]


def test_long_runs_are_encoded_alike(path: Path) -> None:
    assert not first_differences(path, LONG_RUNS)


@pytest.mark.skipif(not CHECKPOINT.is_file(), reason=f"no {CHECKPOINT}")
def test_texts_of_the_shared_files_are_encoded_alike() -> None:
    with (SHARED / "e2e/dev.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    texts = [f"{row['mr']}<sep>{row['ref']}</s>" for row in rows]
    assert not first_differences(CHECKPOINT, texts + random_texts(CHECKPOINT, 1000, seed=1))


def test_invalid_utf8_is_refused_with_its_byte_offset(opt_like: Path) -> None:
    broken = {b"\xff": 0, b"12345678901\xe9t": 11, b"a\xed\xa0\x80": 1, b"\xf0\x9f\x98": 0}
    lines = answers(built_program("tokenize"), opt_like, [("e", text) for text in broken])[1:]
    for line, at in zip(lines, broken.values(), strict=True):
        assert re.search(rf"error 1 prompt \| is no UTF-8 at byte {at} ", line)
