"""Compare the C++ tokenizer with the `tokenizers` package on random texts and on files.

    python scripts/libskipdec/compare_tokenizers.py --count 100000
    python scripts/libskipdec/compare_tokenizers.py --tokenizer tokenizer.json --texts dev.csv

Tokens with and without special ones, decoded text, the pieces of incremental decoding and
`least_tokens` must be equal for each text. ``--count`` texts are divided among tokenizer files of
every supported kind, or all used for the given file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from libskipdec.token_files import KINDS, tokenizer_file
from libskipdec.token_parity import differences, random_texts

_PROGRAM = Path(__file__).parents[2] / "build/native/tests/tests/tokenize"
_AT_ONCE = 5000  # texts


def first_difference(program: Path, tokenizer: Path, texts: list[str], seed: int) -> str | None:
    """Describe the first difference between the two, if any."""
    for start in range(0, len(texts), _AT_ONCE):
        part = texts[start : start + _AT_ONCE]
        for difference in islice(differences(program, tokenizer, part, seed), 1):
            return difference
    return None


def main() -> int:
    """Compare; exit code 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=100_000, help="random texts in total")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizer", type=Path, nargs="*", default=[], help="tokenizer.json")
    parser.add_argument(
        "--texts", type=Path, nargs="*", default=[], help="files with a text per line"
    )
    parser.add_argument("--program", type=Path, default=_PROGRAM, help="tests/…/tokenize, compiled")
    arguments = parser.parse_args()
    if not arguments.program.is_file():
        parser.error(f"no {arguments.program}; pytest tests/runtime/libskipdec compiles it")
    lines = [
        line for path in arguments.texts for line in path.read_text(encoding="utf-8").split("\n")
    ]
    code = 0
    with tempfile.TemporaryDirectory(prefix="tokenizers-") as folder:
        files = arguments.tokenizer or [tokenizer_file(kind, Path(folder)) for kind in KINDS]
        for path in files:
            started = time.monotonic()
            count = -(-arguments.count // len(files))
            texts = random_texts(path, count, arguments.seed) + lines
            difference = first_difference(arguments.program, path, texts, arguments.seed)
            seconds = time.monotonic() - started
            print(f"{path.name}: {len(texts)} texts, {seconds:.0f} s: {difference or 'equal'}")
            code = 1 if difference else code
    return code


if __name__ == "__main__":
    sys.exit(main())
