"""Prose, code and summaries from the pages of this repository at one commit.

Every row is a prompt and its completion. Which pages are held out depends on their paths alone, so
the same commit gives the same rows everywhere.
"""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

Kind = Literal["prose", "code", "summaries"]
KINDS: tuple[Kind, ...] = ("prose", "code", "summaries")
PROSE_WORDS = (60, 120)  # of a prompt and of its completion
CODE_LINES = (16, 16)
SUMMARY_WORDS = (60, 200)  # of the section that is summarised
_HELD_OUT = {".md": 3, ".py": 24}  # one page in so many
_FENCE = re.compile(r"^```.*?^```[^\n]*$", re.M | re.S)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_NO_PROSE = re.compile(r"[#|<>]|\s{4}|!!!|\$|---")  # beginnings of headings, tables, code
_MARK = re.compile(r"^\s*(?:[-*]|\d+\.)\s+")  # of a list's item
_SPECIAL = re.compile("<(?:s|pad|/s|unk|sep)>")  # a fresh tokenizer of skipdec tune refuses them
_SENTENCE_END = re.compile(r"(?<=[a-z0-9`)*])[.:](?=\s+[A-Z`*\"])")


@dataclass(frozen=True)
class Row:
    """One prompt with its completion; ``page`` is the path that both are from."""

    kind: Kind
    page: str
    prompt: str
    completion: str

    @property
    def digest(self) -> str:
        """SHA-256 of both texts, by which rows are shuffled."""
        return sha256(f"{self.prompt}\0{self.completion}".encode()).hexdigest()


def pages(repository: str, commit: str) -> dict[str, str]:
    """Return the Markdown and Python pages of ``commit`` by path.

    Raises subprocess.CalledProcessError if the repository does not have that commit.
    """
    command = ["git", "-C", repository, "archive", "--format=tar", commit]
    found = subprocess.run(command, check=True, capture_output=True).stdout
    texts = {}
    with tarfile.open(fileobj=io.BytesIO(found)) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isreg() else None
            if file is not None and member.name.endswith((".md", ".py")):
                texts[member.name] = file.read().decode("utf-8")
    return texts


def is_held_out(path: str) -> bool:
    """Return True for one page in 3 of Markdown and one in 24 of Python, by their paths."""
    suffix = path[path.rindex(".") :]
    return int(sha256(path.encode()).hexdigest(), 16) % _HELD_OUT[suffix] == 0


def rows(texts: Mapping[str, str], section_words: Sequence[int] = SUMMARY_WORDS[1:]) -> list[Row]:
    """Return the distinct rows of all pages, shuffled by their own digests.

    Pages are summarised in sections of each length of ``section_words``.
    """
    made: list[Row] = []
    for path, text in texts.items():
        if path.endswith(".py"):
            made += code_rows(path, text)
        else:
            found = list(paragraphs(text))
            made += prose_rows(path, found)
            for most in section_words:
                made += summary_rows(path, found, most)
    return shuffled(made)


def shuffled(found: Iterable[Row]) -> list[Row]:
    """Return distinct rows in the order of their digests, without those of special tokens."""
    plain = (row for row in found if not _SPECIAL.search(row.prompt + row.completion))
    distinct = {row.digest: row for row in plain}
    return [distinct[digest] for digest in sorted(distinct)]


def paragraphs(text: str) -> Iterator[str]:
    """Yield a Markdown page's paragraphs and list items, each as one line.

    Headings, tables, code and the targets of links are left out.
    """
    for block in re.split(r"\n\s*\n", _FENCE.sub("", text)):
        for item in _items(block.strip("\n").splitlines()):
            line = _LINK.sub(r"\1", " ".join(item.split()))
            if not _NO_PROSE.match(item) and len(line.split()) >= 8 and line[-1] in ".:":
                yield line


def _items(lines: Sequence[str]) -> Iterator[str]:
    """Join lines to paragraphs: a new one begins at each item of a list."""
    begun: list[str] = []
    for line in lines:
        if _MARK.match(line) and begun:
            yield "\n".join(begun)
            begun = []
        begun.append(_MARK.sub("", line) if not begun else line)
    if begun:
        yield "\n".join(begun)


def prose_rows(path: str, found: Sequence[str]) -> Iterator[Row]:
    """Cut a page's paragraphs into passages that follow each other."""
    before, after = PROSE_WORDS
    words = re.findall(r"\s*\S+", "\n\n".join(found))
    for start in range(0, len(words) - before - after + 1, before + after):
        middle = start + before
        prompt, completion = words[start:middle], words[middle : middle + after]
        yield Row("prose", path, "".join(prompt).strip(), "".join(completion))


def code_rows(path: str, text: str) -> Iterator[Row]:
    """Cut a Python file into passages of lines that follow each other."""
    before, after = CODE_LINES
    lines = text.splitlines(keepends=True)
    for start in range(0, len(lines) - before - after + 1, before + after):
        middle = start + before
        prompt, completion = lines[start:middle], lines[middle : middle + after]
        if all(any(line.strip() for line in part) for part in (prompt, completion)):
            yield Row("code", path, "".join(prompt), "".join(completion))


def summary_rows(path: str, found: Sequence[str], most: int = SUMMARY_WORDS[1]) -> Iterator[Row]:
    """Summarise sections of up to ``most`` words by the first sentence of each paragraph."""
    least = SUMMARY_WORDS[0]
    for section in _sections(found, most):
        firsts = [first_sentence(paragraph) for paragraph in section]
        prompt, completion = "\n\n".join(section), " ".join(firsts)
        if len(section) >= 3 and len(prompt.split()) >= max(least, 1.5 * len(completion.split())):
            yield Row("summaries", path, prompt, completion)


def _sections(found: Iterable[str], most: int) -> Iterator[list[str]]:
    """Group paragraphs in order, as many as have at most ``most`` words together."""
    section: list[str] = []
    for paragraph in found:
        if sum(len(text.split()) for text in (*section, paragraph)) > most:
            yield section
            section = []
        section.append(paragraph)
    yield section


def first_sentence(paragraph: str) -> str:
    """Return a paragraph's text up to the end of its first sentence.

    >>> first_sentence("It is exact. Nothing else, e.g. a time, is promised.")
    'It is exact.'
    """
    end = _SENTENCE_END.search(paragraph)
    return paragraph if end is None else paragraph[: end.end()]


def docstring_paragraphs(source: str) -> Iterator[str]:
    """Yield the prose of a Python file's docstrings, one line for each paragraph."""
    for docstring in re.findall(r'^\s*r?"""(.*?)"""', source, re.M | re.S):
        for block in re.split(r"\n\s*\n", docstring):
            line = " ".join(block.split())
            if is_prose(line):
                yield line


def is_prose(line: str) -> bool:
    """Return True if a line has 15 words, is mostly letters, and looks like sentences."""
    letters = sum(letter.isalpha() or letter == " " for letter in line)
    return (
        len(line.split()) >= 15
        and line[0].isupper()
        and line[-1] == "."
        and letters >= 0.9 * len(line)
    )
