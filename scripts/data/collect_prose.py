#!/usr/bin/env python3
"""Collect English prose from the documentation on this machine, for docs/benchmarks/open-prose.md.

    python scripts/data/collect_prose.py --topics TOPICS.py work     # work/prose.{train,dev}.txt

Reads installed GNU info manuals, Vim's help, Git's notes, Python's pydoc topics, and man pages
(sections 2 and 7, and Git's). Keeps distinct paragraphs of at least 20 words that are mostly
letters, one line per paragraph; every twelfth block of 60 is held out. The texts have their own
licences: use them for measuring, but do not redistribute them.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

SHARE = Path("/usr/share")
BLOCK = 60
HELD_OUT = (6, 12)  # block 6 of every 12
NO_PROSE = re.compile(r"version\d|todo|os_|ft_sql|pi_netrw|farsi|usr_toc")  # files of Vim's help
COMMON_WORD = re.compile(r" (the|a|is|of|to|and|in) ")
GROFF = ["groff", "-man", "-Tutf8", "-K", "utf8", "-rLL=8000n", "-rHY=0", "-P-cbou"]


def main() -> None:
    """Write both files into the given directory."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--topics", type=Path, required=True, help="…/pydoc_data/topics.py")
    arguments = parser.parse_args()
    parts: dict[str, list[str]] = {"train": [], "dev": []}
    for index, block in enumerate(blocks(arguments.topics)):
        parts["dev" if index % HELD_OUT[1] == HELD_OUT[0] else "train"].append(block)
    for name, texts in parts.items():
        path = arguments.directory / f"prose.{name}.txt"
        path.write_text("\n".join(texts) + "\n", encoding="utf-8")
        print(f"{path}: {len(path.read_text(encoding='utf-8').split()):,} words")


def blocks(topics: Path) -> Iterator[str]:
    """Yield up to BLOCK new paragraphs of one document at a time."""
    seen: set[str] = set()
    for path in documents(topics):
        paragraphs = []
        for text in filter(is_prose, map(one_line, re.split(r"\n\s*\n", read(path)))):
            key = re.sub(r"\W", "", text).lower()
            if key not in seen:
                seen.add(key)
                paragraphs.append(text)
        for start in range(0, len(paragraphs), BLOCK):
            yield "\n".join(paragraphs[start : start + BLOCK])


def documents(topics: Path) -> Iterator[Path]:
    """Yield every file to read, in a fixed order."""
    yield from sorted((SHARE / "info").glob("*.info*.gz"))
    vim = sorted(path for path in SHARE.glob("vim/vim*/doc/*.txt"))
    yield from (path for path in vim if not NO_PROSE.match(path.name))
    yield from sorted((SHARE / "doc/git").rglob("*.txt*"))
    yield topics
    for pattern in ("man1/git*.gz", "man2/*.gz", "man7/*.gz"):
        yield from sorted((SHARE / "man").glob(pattern))


def read(path: Path) -> str:
    """Return a document's text; empty if its link points to a missing page."""
    if path.name == "topics.py":
        *_, topics = ast.parse(path.read_text(encoding="utf-8")).body
        assert isinstance(topics, ast.Assign)
        return "\n\n".join(ast.literal_eval(topics.value).values())
    data = path.read_bytes() if path.exists() else b""
    if data and path.suffix == ".gz":
        data = gzip.decompress(data)
    if path.is_relative_to(SHARE / "man"):
        data = subprocess.run(GROFF, input=data, capture_output=True, check=False).stdout
    return data.decode("utf-8", errors="ignore")


def one_line(paragraph: str) -> str:
    """Join its words with single spaces."""
    return " ".join(paragraph.replace("\x1f", " ").split())


def is_prose(text: str) -> bool:
    """Return True if it is long, looks like sentences, and has letters and common words."""
    letters = sum(letter.isalpha() or letter == " " for letter in text)
    return (
        len(text.split()) >= 20
        and text[0].isupper()
        and text[-1] in ".:"
        and letters >= 0.9 * len(text)
        and len(COMMON_WORD.findall(text)) >= 3
    )


if __name__ == "__main__":
    main()
