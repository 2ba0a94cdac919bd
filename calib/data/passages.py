"""Passages of a plain text: consecutive words, cut into prompts and completions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from ...engines.errors import UsageError

_WORD = re.compile(r"\s*\S+")  # includes the white space before it


@dataclass(frozen=True)
class PassageWords:
    """Numbers of words of a passage in its prompt and in its completion, each at least 1."""

    prompt: int
    completion: int

    @classmethod
    def parse(cls, text: str) -> PassageWords:
        """Parse ``24+120``. Raises UsageError for anything else, including zero words."""
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
        """Number of words in a whole passage."""
        return self.prompt + self.completion


DEFAULT_PASSAGE_WORDS = PassageWords(24, 120)


@dataclass(frozen=True)
class Passage:
    """Consecutive words exactly as in the file; ``line`` is that of the first word."""

    prompt: str
    completion: str
    line: int


def split_passages(text: str, words: PassageWords) -> Iterator[Passage]:
    """Cut ``text`` into consecutive passages; an incomplete last one is dropped.

    Each word includes the white space before it, so that all prompts and completions joined are the
    beginning of the text, and a completion starts the way byte-level tokenizers expect.

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
