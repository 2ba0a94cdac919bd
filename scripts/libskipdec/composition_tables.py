"""Write the tables of canonical composition that libskipdec's NFC uses.

    python scripts/libskipdec/composition_tables.py [--check]

`decompositions.inc` and `combining_classes.inc` of runtime/native/src/tokenizer/text/ describe what
the `tokenizers` package does. They are found by normalising every Unicode scalar value with it, so
that both agree whatever the package's Unicode version. `--check` writes nothing and exits with 1 if
a file differs.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

import tokenizers
from tokenizers import normalizers

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from libskipdec.unicode_tables import SCALARS, TABLES, write_or_check

_HANGUL = range(0xAC00, 0xD7A4)  # decomposed by arithmetic
_HANGUL_PARTS = (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))  # vowels and final consonants
UNSTABLE = 255  # in combining_classes.inc: class 0, but NFC may change it or join it to the left


@dataclass(frozen=True)
class Decomposition:
    """One step: ``first``, then ``second``, which is 0 if it gives a single character.

    NFC composes the two again if ``composes``.
    """

    first: int
    second: int
    composes: bool


def _normalized(form: Callable[[str], str], texts: list[str]) -> list[str]:
    """Normalise each text; a line feed, which no form changes, separates them."""
    return form("\n".join(texts)).split("\n") if texts else []


_nfd, _nfc = normalizers.NFD().normalize_str, normalizers.NFC().normalize_str


@cache
def decompositions() -> dict[int, Decomposition]:
    """Return the decomposition of each character that has one, except Hangul syllables."""
    others = [at for at in SCALARS if at not in _HANGUL and at != ord("\n")]
    whole = dict(zip(others, _normalized(_nfd, [chr(at) for at in others]), strict=True))
    again = dict(zip(others, _normalized(_nfc, [chr(at) for at in others]), strict=True))
    changed = {at: text for at, text in whole.items() if text != chr(at)}
    of_text = {text: at for at, text in changed.items() if len(text) > 1 and again[at] == chr(at)}
    of_text |= {text: at for at, text in changed.items() if len(text) > 1 and text not in of_text}
    found = {}
    for at, text in changed.items():
        rest, last = text[:-1], text[-1]
        if not rest:
            found[at] = Decomposition(ord(last), 0, composes=False)
            continue
        first = ord(rest) if len(rest) == 1 else of_text[rest]
        found[at] = Decomposition(first, ord(last), composes=again[at] == chr(at))
    return found


@cache
def combining_classes() -> dict[int, int]:
    """Return the canonical combining class of each character for which it is not 0.

    The package only shows which of two characters comes first, so each character is ordered among
    one character of each class in Python's own table.
    """
    lowest, highest = "\u0334", "\u0345"  # of the classes 1 and 240
    parts = [chr(at) for at in SCALARS if at not in decompositions() and at != ord("\n")]
    behind = _swapped([(highest, part) for part in parts])
    before = _swapped([(part, lowest) for part in parts])
    marks = [part for part, *swaps in zip(parts, behind, before, strict=True) if any(swaps)]
    known = {unicodedata.combining(mark): mark for mark in reversed(marks)}
    known.pop(0, None)
    classes = {}
    for mark in marks:
        after = _swapped([(one, mark) for one in known.values()])
        earlier = _swapped([(mark, one) for one in known.values()])
        equal = [
            number for number, *swaps in zip(known, after, earlier, strict=True) if not any(swaps)
        ]
        if len(equal) != 1:
            raise SystemExit(f"U+{ord(mark):04X} has the combining classes {equal}")
        classes[ord(mark)] = equal[0]
    return classes


def _swapped(pairs: Iterable[tuple[str, str]]) -> list[bool]:
    """Return, for each pair of marks, whether the package puts the second one first."""
    texts = [first + second for first, second in pairs]
    return [
        now != text and now == text[::-1]
        for now, text in zip(_normalized(_nfd, texts), texts, strict=True)
    ]


def stabilities() -> dict[int, int]:
    """Return the combining class of each scalar value, or UNSTABLE."""
    steps, classes = decompositions(), combining_classes()
    joined = {step.second for step in steps.values() if step.composes} | set(_HANGUL_PARTS)
    unstable = {at for at, step in steps.items() if not step.composes} | joined
    for at in steps:
        first = at
        while first in steps:
            first = steps[first].first
        if first in joined or first in classes:
            unstable.add(at)
    return {at: classes.get(at, UNSTABLE if at in unstable else 0) for at in SCALARS}


def _file(explanation: str, entries: Iterator[str]) -> str:
    lines, line = [], ""
    for entry in entries:
        if len(line) + len(entry) > 98:
            lines.append(line)
            line = ""
        line = f"{line} {entry}" if line else entry
    version = tokenizers.__version__
    return "\n".join(
        [
            "// Written by scripts/libskipdec/composition_tables.py from the behaviour of "
            f"tokenizers {version}.",
            f"// {explanation}",
            *lines,
            line,
            "",
        ]
    )


def files() -> dict[Path, str]:
    """Return the content of each file."""
    steps = (
        f"{{0x{at:X}, 0x{step.first:X}, 0x{step.second:X}, {str(step.composes).lower()}}},"
        for at, step in sorted(decompositions().items())
    )
    stability = stabilities()
    runs = (
        f"{{0x{next(iter(run)):X}, {known}}},"
        for known, run in groupby(SCALARS, key=stability.__getitem__)
    )
    return {
        TABLES.with_name("decompositions.inc"): _file(
            "A character, the one or two that it decomposes into, and whether these compose it.",
            steps,
        ),
        TABLES.with_name("combining_classes.inc"): _file(
            "First code point of each run of characters of a combining class; see composition.cpp.",
            runs,
        ),
    }


if __name__ == "__main__":
    sys.exit(write_or_check(__doc__, files))
