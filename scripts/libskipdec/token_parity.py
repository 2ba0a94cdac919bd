"""Compare the C++ tokenizer with the Python one on the same texts."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from skipdec.runtime.tokens.tokenizer import Tokenizer

from .token_files import added_contents
from .token_texts import random_text

Record = tuple[str, bytes]


def answers(program: Path, path: Path, records: Iterable[Record]) -> list[str]:
    """Return the lines that ``program``, libskipdec's test program tokenize, prints for ``path``.

    The first one is about the file itself.
    """
    request = b"".join(b"%b%d\n%b" % (kind.encode(), len(text), text) for kind, text in records)
    result = subprocess.run([program, path], input=request, capture_output=True, check=False)
    assert result.returncode in (0, 1), result.stderr
    return result.stdout.decode().split("\n")[:-1]


def _expected_encoding(tokenizer: Tokenizer, text: str) -> str:
    ids = (" ".join([*map(str, tokenizer.encode(text, special)), "|"]) for special in (True, False))
    return " ".join([*ids, str(tokenizer.least_tokens(text))])


def _expected_decoding(tokenizer: Tokenizer, token_ids: list[int]) -> str:
    texts = [tokenizer.decode(token_ids, skip) for skip in (True, False)]
    for skip in (True, False):
        decoder = tokenizer.incremental_decoder(skip)
        texts += [decoder.push(token_id) for token_id in token_ids]
        texts.append(decoder.flush())
    return " ".join(["x" + text.encode().hex() for text in texts] + [""])


def differences(program: Path, path: Path, texts: list[str], seed: int = 0) -> Iterator[str]:
    """Yield differences on ``texts``, each encoded and, cut and mixed, decoded."""
    source = random.Random(seed)
    tokenizer = Tokenizer.parse(path.read_bytes(), str(path))
    records: list[Record] = []
    expected: list[str] = []
    for text in texts:
        records.append(("e", text.encode()))
        expected.append(_expected_encoding(tokenizer, text))
        token_ids = tokenizer.encode(text)
        if source.random() < 0.5:  # parts of characters, ids that are no token
            source.shuffle(token_ids)
            token_ids.append(source.randrange(tokenizer.vocab_size + 5))
        records.append(("d", " ".join(map(str, token_ids)).encode()))
        expected.append(_expected_decoding(tokenizer, token_ids))
    for record, ours, right in zip(
        records, answers(program, path, records)[1:], expected, strict=True
    ):
        if ours.strip() != right.strip():
            yield f"{record}: {ours} instead of {right}"


def random_texts(path: Path, count: int, seed: int) -> list[str]:
    """Return ``count`` texts for the tokenizer of ``path``, some of them with its added tokens."""
    source = random.Random(seed)
    added = added_contents(Tokenizer.parse(path.read_bytes(), str(path))._tokenizer)
    return [random_text(source, added) for _ in range(count)]
