"""Token ids to text, one at a time, as the decoder of a tokenizer.json does it."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>")  # the library reads a sign, too
_REPLACEMENT = "\ufffd"


class IncrementalDecoder(Protocol):
    """Decodes one sequence token by token.

    The pieces that ``push`` and the final ``flush`` return join to ``Tokenizer.decode`` of all
    tokens. ``push`` returns whole characters only: "é" as bytes C3, A9 in two tokens gives "",
    then "é".
    """

    def push(self, token_id: int) -> str:
        """Take the next token and return the text that it completes; may be ""."""

    def flush(self) -> str:
        """End the sequence and return the rest of its text, U+FFFD for an incomplete character."""

    @property
    def num_held(self) -> int:
        """The number of whole characters in the tokens so far that `push` has held back."""


@dataclass(frozen=True)
class CharacterSteps:
    """The decoder of a character-based tokenizer: these steps in this order.

    ``replacements`` are made in each token. With ``byte_fallback``, a run of tokens ``<0x00>`` …
    ``<0xFF>`` is decoded as UTF-8, or as one U+FFFD per byte if it is invalid. Up to
    ``most_stripped`` characters ``stripped`` are omitted at the start of the whole text. LLaMA 2's
    is ``(("▁", " "),), True, " ", 1``.
    """

    replacements: tuple[tuple[str, str], ...] = ()
    byte_fallback: bool = False
    stripped: str = ""
    most_stripped: int = 0

    def text_of(self, token: str) -> str:
        """Return a token after the replacements."""
        for pattern, content in self.replacements:
            token = token.replace(pattern, content)
        return token

    def byte_of(self, text: str) -> bytes | None:
        """Return the byte that a token stands for; ``text`` is the token's ``text_of``."""
        match = _BYTE_TOKEN.fullmatch(text) if self.byte_fallback else None
        return None if match is None else bytes([int(match[1], 16)])


def component_steps(component: Any) -> list[dict[str, Any]]:  # noqa: ANN401  (of tokenizers)
    """Return the steps of a normalizer, pre-tokenizer or decoder, with sequences flattened."""
    if component is None:
        return []
    return list(_flattened(json.loads(component.__getstate__())))


def _flattened(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if step["type"] != "Sequence":
        yield step
        return
    for member in ("normalizers", "pretokenizers", "decoders"):
        for inner in step.get(member, ()):
            yield from _flattened(inner)


def character_steps(decoder: object) -> CharacterSteps | None:
    """Return the steps of ``decoder``: Replace…, ByteFallback, Fuse and Strip, in this order.

    Each may be missing, but Strip needs Fuse. Returns None for any other decoder.
    """
    steps = component_steps(decoder)
    if decoder is None or any(
        step["type"] == "Replace" and not step["pattern"].get("String") for step in steps
    ):
        return None
    order = "".join(_LETTERS.get(step["type"], "?") for step in steps)
    if not re.fullmatch(r"R*B*(F+S?)?", order) or any(step.get("stop") for step in steps):
        return None
    strip: dict[str, Any] = steps[-1] if order.endswith("S") else {"content": "", "start": 0}
    return CharacterSteps(
        tuple(
            (step["pattern"]["String"], step["content"])
            for step in steps
            if step["type"] == "Replace"
        ),
        "B" in order,
        strip["content"],
        strip["start"],
    )


_LETTERS = {"Replace": "R", "ByteFallback": "B", "Fuse": "F", "Strip": "S"}


class ByteDecoder:
    """Decodes UTF-8 incrementally, because tokens are byte strings; the cost is linear."""

    def __init__(self, bytes_of: Callable[[int], bytes], is_skipped: Callable[[int], bool]) -> None:
        self._bytes_of = bytes_of
        self._is_skipped = is_skipped
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Take the next token, as `IncrementalDecoder.push`."""
        return "" if self._is_skipped(token_id) else self._utf8.decode(self._bytes_of(token_id))

    def flush(self) -> str:
        """End the sequence, as `IncrementalDecoder.flush`."""
        return self._utf8.decode(b"", final=True)

    @property
    def num_held(self) -> int:
        """None: `push` returns each character with its last byte."""
        return 0


class CharacterDecoder:
    """Decodes by `CharacterSteps`; the cost is linear.

    A run of byte tokens is returned with the token after it, because a later byte may make the
    whole run invalid. ``▁<0xE6> <0x9D> <0xB1> ▁you`` gives "", "", "", "東 you".
    """

    def __init__(
        self,
        steps: CharacterSteps,
        token_of: Callable[[int], str | None],
        is_skipped: Callable[[int], bool],
    ) -> None:
        self._steps = steps
        self._token_of = token_of
        self._is_skipped = is_skipped
        self._run = bytearray()
        self._may_be_stripped = steps.most_stripped

    def push(self, token_id: int) -> str:
        """Take the next token, as `IncrementalDecoder.push`."""
        token = None if self._is_skipped(token_id) else self._token_of(token_id)
        if token is None:
            return ""  # decode omits it, so it does not end a run of bytes either
        text = self._steps.text_of(token)
        byte = self._steps.byte_of(text)
        if byte is not None:
            self._run += byte
            return ""
        return self._stripped(self._end_run() + text)

    def flush(self) -> str:
        """End the sequence, as `IncrementalDecoder.flush`."""
        return self._stripped(self._end_run())

    @property
    def num_held(self) -> int:
        """The characters with which the run of bytes begins."""
        try:
            return len(self._run.decode())
        except UnicodeDecodeError as error:
            return len(self._run[: error.start].decode())

    def _end_run(self) -> str:
        run, self._run = self._run, bytearray()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return _REPLACEMENT * len(run)

    def _stripped(self, text: str) -> str:
        while self._may_be_stripped and text:
            if text[0] != self._steps.stripped:
                self._may_be_stripped = 0
            else:
                self._may_be_stripped -= 1
                text = text[1:]
        return text


class WindowDecoder:
    """Decodes a short window repeatedly, since a token's text may depend on the tokens before it.

    A leading space is dropped only at the start of a text, so the window keeps the tokens of the
    last piece as context. ``▁Hel lo ▁you``: window [▁Hel] "Hel" → [▁Hel, lo] "Hello" gives "lo",
    window becomes [lo] → [lo, ▁you] "lo you" gives " you".
    """

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        token_of: Callable[[int], str | None],
        is_skipped: Callable[[int], bool],
    ) -> None:
        self._decode = decode
        self._token_of = token_of
        self._is_skipped = is_skipped
        self._window: list[int] = []  # tokens of the last piece, then tokens held back
        self._held_from = 0  # first index of the tokens whose text is held back
        self._returned = ""  # text of window[:held_from]

    def push(self, token_id: int) -> str:
        """Take the next token, as `IncrementalDecoder.push`."""
        token = None if self._is_skipped(token_id) else self._token_of(token_id)
        if token is None:
            return ""  # decode omits it, so it does not end a run of bytes either
        self._window.append(token_id)
        if _BYTE_TOKEN.fullmatch(token):
            return ""  # a run of bytes is decoded as a whole
        text = self._decode(self._window)
        if text.endswith(_REPLACEMENT) or len(text) <= len(self._returned):
            return ""
        piece = text[len(self._returned) :]
        self._window = self._window[self._held_from :]
        self._held_from = len(self._window)
        self._returned = self._decode(self._window)
        return piece

    def flush(self) -> str:
        """End the sequence, as `IncrementalDecoder.flush`."""
        return self._held()

    @property
    def num_held(self) -> int:
        """The characters of the window that are held back, without replacements at its end."""
        return len(self._held().rstrip(_REPLACEMENT))

    def _held(self) -> str:
        return self._decode(self._window)[len(self._returned) :]
