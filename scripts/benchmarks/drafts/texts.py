"""Texts as token ids: prompts, and what was written after them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tokenizers import Tokenizer

from skipdec.calib.data.data import DataConfig, group_references, load_examples


@dataclass(frozen=True)
class Text:
    """The token ids of a prompt and of its completion."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]


@dataclass(frozen=True)
class NamedTexts:
    """The texts of one file, all with one tokenizer."""

    name: str
    texts: tuple[Text, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of all completions."""
        return sum(len(text.completion) for text in self.texts)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `texts_of` reads."""
    parser.add_argument("data", type=Path, nargs="+", help=".jsonl of `texts`, or E2E's .csv")
    parser.add_argument("--tokenizer", type=Path, required=True, help="a tokenizer.json")
    parser.add_argument("--limit", type=int, help="texts per file")


def texts_of(arguments: argparse.Namespace) -> Iterator[NamedTexts]:
    """Yield each file's distinct prompts with their first completions, shuffled, tokenised."""
    tokenizer = tokenizer_of(arguments)
    for path in arguments.data:
        yield tokenised(path, tokenizer, arguments.limit)


def tokenizer_of(arguments: argparse.Namespace) -> Tokenizer:
    """Return the tokenizer of ``--tokenizer``."""
    return Tokenizer.from_file(str(arguments.tokenizer))


def tokenised(path: Path, tokenizer: Tokenizer, limit: int | None) -> NamedTexts:
    """Return a file's first ``limit`` texts; the end of text follows each completion."""
    end = tokenizer.token_to_id("</s>")
    if end is None:
        raise SystemExit("the tokenizer has no </s>, which ends a text; give an OPT's")
    texts = [
        Text(
            tuple(tokenizer.encode(prompt).ids),
            (*tokenizer.encode(completion, add_special_tokens=False).ids, end),
        )
        for prompt, completion in pairs(path)[:limit]
    ]
    return NamedTexts(path.stem, tuple(texts))


def pairs(path: Path) -> list[tuple[str, str]]:
    """Return distinct prompts with their first completions, shuffled by their digests."""
    config = DataConfig(path=path, preset="e2e" if path.suffix == ".csv" else None)
    examples = load_examples(config)
    found = ((str(prompt), completions[0]) for prompt, completions in group_references(examples))
    return shuffled(found)


def shuffled(found: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return pairs in the order of their digests, which is the same everywhere.

    >>> shuffled([("a", "1"), ("b", "2")]) == shuffled([("b", "2"), ("a", "1")])
    True
    """
    return sorted(found, key=lambda pair: sha256("\0".join(pair).encode()).hexdigest())
