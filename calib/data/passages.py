"""Passages of a plain text: consecutive words, cut into prompts and completions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from ...engines.errors import UsageError

_WORD = re.compile(r"\s*\S+")  # with the white space before it


@dataclass(frozen=True)
class PassageWords:
    """How many words of a passage are its prompt, and how many its completion; 1 or more each."""

    prompt: int
    completion: int

    @classmethod
    def parse(cls, text: str) -> PassageWords:
        """Read ``24+120``. Raises UsageError for anything else, zero words included."""
        match = re.fullmatch(r"([0-9]+)\+([0-9]+)", text)
        words = tuple(map(int, match.groups())) if match else (0, 0)
        if min(words) < 1:
            raise UsageError(
                "passage_words",
                f"is {text!r}; allowed: PROMPT+COMPLETION, 1 word or more each, e.g. 24+120",
            )
        return cls(*words)

    @property
    def total(self) -> int:
        """Words of a whole passage."""
        return self.prompt + self.completion


DEFAULT_PASSAGE_WORDS = PassageWords(24, 120)


@dataclass(frozen=True)
class Passage:
    """Consecutive words as they stand in the file; ``line`` is that of the first word."""

    prompt: str
    completion: str
    line: int


def split_passages(text: str, words: PassageWords) -> Iterator[Passage]:
    """Cut ``text`` into passages, one behind the other; what is left at its end is dropped.

    A word has the white space before it, so that all prompts and completions, joined, are the
    text's beginning, and a completion starts as byte-level tokenizers like words to start.

    >>> list(split_passages("To be, or not\\nto be", PassageWords(1, 2)))
    [Passage('To', ' be, or', 1), Passage(' not', '\\nto be', 1)]
    """
    line = 1
    found = _WORD.finditer(text)
    while len(parts := [match.group() for match in islice(found, words.total)]) == words.total:
        gap = len(parts[0]) - len(parts[0].lstrip())
        start = line + parts[0].count("\n", 0, gap)
        prompt, completion = "".join(parts[: words.prompt]), "".join(parts[words.prompt :])
        yield Passage(prompt, completion, start)
        line += prompt.count("\n") + completion.count("\n")
