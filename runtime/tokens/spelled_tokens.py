"""SpelledTokens: keeps special tokens that the messages of a chat spell from becoming tokens.

A template renders all messages into one text, in which the tokenizer would turn whatever spells a
special token into that token. So each is replaced by a mark before the messages are rendered, and
put back as ordinary text afterwards. Marks consist of noncharacters, which no text has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from os.path import commonprefix

from ...engines.errors import UsageError

END = "\ufdd2"  # marks the end of the last message
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_DIGITS = [chr(0xFDE0 + digit) for digit in range(10)]
_NONCHARACTERS = (_OPEN, _CLOSE, END, *_DIGITS)
_PIECE = 1 << 14  # characters per search, which takes a millisecond
_MARK = re.compile(f"{_OPEN}([{''.join(_DIGITS)}]{{1,9}}){_CLOSE}")
_SPELLING = str.maketrans({digit: str(index) for index, digit in enumerate(_DIGITS)})
_NUMBER = str.maketrans({str(index): digit for index, digit in enumerate(_DIGITS)})


class SpelledTokens:
    """Marks the tokens ``texts`` in messages, and finds the marks in what a template renders.

    A message may be as long as a server allows, and other threads wait while a regular expression
    runs. So texts are searched piece by piece, with an expression in which no two alternatives
    begin with the same character.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._marks = {
            text: f"{_OPEN}{str(number).translate(_NUMBER)}{_CLOSE}"
            for number, text in enumerate(texts)
            if text.strip()
        }
        self._longest = max(map(len, self._marks), default=0)
        self._pattern = re.compile(_one_of(list(self._marks))) if self._marks else None

    def marked(self, text: str) -> str:
        """Return ``text`` without noncharacters, and with marks for the tokens in it.

        If two tokens begin at the same place, the longer one counts, as in the tokenizer.
        """
        text = without_noncharacters(text)
        if self._pattern is None:
            return text
        parts: list[str] = []
        written = position = 0
        while position < len(text):
            end = position + _PIECE
            found = self._pattern.search(text, position, end + self._longest)
            if found is None or found.start() >= end:
                position = end
                continue
            parts += (text[written : found.start()], self._marks[found[0]])
            written = position = found.end()
        return "".join([*parts, text[written:]])

    def parts(self, rendered: str) -> Iterator[tuple[str, bool]]:
        """Yield the parts of rendered text, and whether each is a token that a message spelled.

        Raises UsageError for a mark of no token, which only a template can have written.
        """
        begin = 0
        for mark in _MARK.finditer(rendered):
            yield without_noncharacters(rendered[begin : mark.start()]), False
            number = int(mark[1].translate(_SPELLING))
            if number >= len(self._texts):
                raise UsageError(
                    "chat template",
                    "writes noncharacters (U+FDD0 and others) of its own, which stand for special "
                    "tokens of messages; use another one",
                )
            yield self._texts[number], True
            begin = mark.end()
        yield without_noncharacters(rendered[begin:]), False


def _one_of(texts: Sequence[str]) -> str:
    """Return a regular expression for the longest of some texts, without common prefixes.

    >>> _one_of(["<|end|>", "<|eot|>", "<s>"])
    '(?:<(?:\\\\|e(?:nd\\\\|>|ot\\\\|>)|s>))'
    """
    groups: dict[str, list[str]] = {}
    for text in texts:
        groups.setdefault(text[:1], []).append(text)
    may_end = groups.pop("", None) is not None
    alternatives = []
    for members in groups.values():
        prefix = commonprefix(members)  # noqa: RUF071  (of texts, not of paths)
        alternatives.append(re.escape(prefix) + _one_of([one[len(prefix) :] for one in members]))
    if not alternatives:
        return ""
    return f"(?:{'|'.join(alternatives)})" + "?" * may_end


def without_noncharacters(text: str) -> str:
    """Return ``text`` with U+FFFD in place of those that marks consist of."""
    if text.isascii():
        return text
    for character in _NONCHARACTERS:
        text = text.replace(character, "\ufffd")
    return text
