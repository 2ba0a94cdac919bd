"""Write the rows of this repository's pages, held out and to train on, and a tokenizer.

    python scripts/bench.py drafts texts /tmp/drafts

Writes prose.jsonl, code.jsonl and summaries.jsonl of held-out pages; train.jsonl of all other
pages and of the docstrings of installed packages, which only ever go into that folder; a
byte-level BPE that was trained on train.jsonl, tokenizer.json; and made.json, which says from what
all of it was made. The files have the licences of what they were made from.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from benchmarks.drafts.pages import (
    KINDS,
    Row,
    docstring_paragraphs,
    is_held_out,
    pages,
    prose_rows,
    rows,
    shuffled,
    summary_rows,
)
from benchmarks.record import ROOT

COMMIT = "1fb6df29ffdb8b46377f10b8435fca97a0032838"
VOCABULARY = 16_000
TRAINED_SECTIONS = (80, 110, 140, 170, 200)  # words; more rows to learn copying from


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `run`."""
    parser.add_argument("directory", type=Path)
    parser.add_argument("--commit", default=COMMIT, help="whose pages to take")
    parser.add_argument("--packages", nargs="*", default=["numpy", "transformers"])
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY, help="of tokenizer.json")


def run(arguments: argparse.Namespace) -> None:
    """Write the folder and print how many rows it has."""
    directory: Path = arguments.directory
    directory.mkdir(parents=True, exist_ok=True)
    texts = pages(str(ROOT), arguments.commit)
    held_out = rows({path: text for path, text in texts.items() if is_held_out(path)})
    others = {path: text for path, text in texts.items() if not is_held_out(path)}
    train = shuffled([*rows(others, TRAINED_SECTIONS), *package_rows(arguments.packages)])
    files: dict[str, list[Row]] = {
        kind: [row for row in held_out if row.kind == kind] for kind in KINDS
    }
    made = {
        "commit": arguments.commit,
        "packages": {name: version(name) for name in arguments.packages},
        "vocabulary": arguments.vocabulary,
        "held_out_pages": sorted({row.page for row in held_out}),
        "files": {
            f"{name}.jsonl": _write(directory / f"{name}.jsonl", found)
            for name, found in {**files, "train": train}.items()
        },
    }
    train_tokenizer(train, arguments.vocabulary, directory / "tokenizer.json")
    (directory / "made.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(made["files"], indent=1))


def package_rows(packages: Iterable[str]) -> Iterator[Row]:
    """Yield passages and summaries of the docstrings of installed packages, file by file."""
    for name in packages:
        spec = find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit(f"--packages has {name!r}, which is not an installed package")
        folder = Path(spec.submodule_search_locations[0])
        seen: set[str] = set()
        for path in sorted(folder.rglob("*.py")):
            source = path.read_text(encoding="utf-8", errors="ignore")
            found = [line for line in docstring_paragraphs(source) if line not in seen]
            seen.update(found)
            yield from prose_rows(f"{name}/{path.relative_to(folder)}", found)
            for most in TRAINED_SECTIONS:
                yield from summary_rows(f"{name}/{path.relative_to(folder)}", found, most)


def train_tokenizer(found: Iterable[Row], vocabulary: int, path: Path) -> None:
    """Train a byte-level BPE like OPT's on prompts and completions and write it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<s>", "<pad>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [text for row in found for text in (row.prompt, row.completion)]
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))


def _write(path: Path, found: list[Row]) -> dict[str, object]:
    text = "".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in found)
    path.write_text(text, encoding="utf-8")
    return {
        "rows": dict(Counter(row.kind for row in found)),
        "sha256": sha256(text.encode()).hexdigest(),
    }
