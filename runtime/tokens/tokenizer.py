"""Tokenizer of a bundle: text to token ids, and token ids to text as they come."""

from __future__ import annotations

import codecs
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import tokenizers

from ...engines.documents import EXACT
from ...engines.errors import BundleError, UsageError, shown
from ...engines.manifest import MAX_TOKENS, PROMPT_PLACEHOLDER
from .chat import ChatTemplate

if TYPE_CHECKING:
    from ...engines.bundle import EngineBundle

_COMPONENTS = ("model", "normalizer", "pre_tokenizer", "post_processor", "decoder")
_POST_PROCESSORS = (
    *("BertProcessing", "ByteLevel", "RobertaProcessing", "Sequence", "TemplateProcessing"),
)
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")  # of tokenizers with byte fallback
_REPLACEMENT = "\ufffd"


class IncrementalDecoder(Protocol):
    """Decodes one sequence token by token.

    The pieces that ``push`` and the final ``flush`` return join to ``Tokenizer.decode`` of all
    tokens. ``push`` returns whole characters only: "é" as bytes C3, A9 in two tokens gives "",
    then "é".
    """

    def push(self, token_id: int) -> str:
        """Take the next token and return the text that became certain; may be ""."""

    def flush(self) -> str:
        """End the sequence and return the rest of its text, U+FFFD for an incomplete character."""


class Tokenizer:
    """Converts text to token ids and back by a ``tokenizer.json`` of the tokenizers library.

    ``encode_prompt`` puts a prompt in place of ``{prompt}`` in the ``prompt_template``, if there is
    one. ``special_ids`` are the tokens that ``skip_special_tokens`` omits. ``chat`` renders
    messages by the bundle's chat template; None if it has none.
    """

    chat: ChatTemplate | None = None

    def __init__(self, tokenizer: tokenizers.Tokenizer, prompt_template: str | None = None) -> None:
        self.prompt_template = prompt_template
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.special_ids = frozenset(
            token_id
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
            if token.special
        )
        self._byte_level = isinstance(tokenizer.decoder, tokenizers.decoders.ByteLevel)
        self._bytes_of: dict[int, bytes] = {}  # a cache, byte-level only

    @classmethod
    def load(cls, path: str | Path, prompt_template: str | None = None) -> Tokenizer:
        """Read a ``tokenizer.json``. Raises BundleError if it is missing or malformed."""
        path = Path(path)
        if not path.is_file():
            raise BundleError(str(path), "does not exist; export the model again")
        return cls.parse(path.read_bytes(), str(path), prompt_template)

    @classmethod
    def of(cls, bundle: EngineBundle, prompt_template: str | None = None) -> Tokenizer | None:
        """Read the tokenizer of ``bundle``, if it has one, and its chat template.

        Raises BundleError as ``load`` does.
        """
        name = bundle.manifest.tokenizer
        if name is None:
            return None
        tokenizer = cls.parse(bundle.read(name), str(bundle.file(name)), prompt_template)
        if (chat := bundle.manifest.chat_template) is not None:
            subject = str(bundle.file(chat.path))
            tokenizer.chat = ChatTemplate.parse(bundle.read(chat.path), chat, tokenizer, subject)
        return tokenizer

    @classmethod
    def parse(cls, document: bytes, subject: str, prompt_template: str | None = None) -> Tokenizer:
        """Parse the bytes of a ``tokenizer.json``; ``subject`` names it in a BundleError."""
        try:
            tokenizer = tokenizers.Tokenizer.from_buffer(document)
        except ValueError as error:
            raise BundleError(
                subject, f"is not a tokenizer ({error}); export the model again"
            ) from error
        if problem := tokenizer_problem(document):
            raise BundleError(subject, f"is damaged: {problem}; export the model again")
        return cls(tokenizer, prompt_template)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included; a model's vocabulary may be padded beyond."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of ``text``, by default with the post-processor's special tokens.

        Raises UsageError for text with lone surrogates, which no encoding has.
        """
        try:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        except TypeError as error:
            raise UsageError("prompt", f"{shown(text)} is no Unicode text") from error

    def encode_plain(self, text: str) -> list[int]:
        """Return the token ids of ``text``, in which no special token is recognised."""
        return self._plain.encode(text, add_special_tokens=False).ids

    @cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        copied = tokenizers.Tokenizer.from_str(self._tokenizer.to_str())
        copied.encode_special_tokens = True
        return copied

    @cached_property
    def special_tokens(self) -> tuple[str, ...]:
        """Texts of the special tokens, by ascending id."""
        added = sorted(self._tokenizer.get_added_tokens_decoder().items())
        return tuple(token.content for _, token in added if token.special)

    def token_id(self, token: str) -> int | None:
        """Return the id of ``token``; None if the vocabulary does not have it."""
        return self._tokenizer.token_to_id(token)

    def encode_prompt(self, prompt: str) -> list[int]:
        """Return the token ids that the model reads for ``prompt``, template included.

        >>> Tokenizer.load("tokenizer.json", "{prompt}\\nTL;DR:").encode_prompt("a post")
        ...     # as encode("a post\\nTL;DR:")
        """
        if self.prompt_template is not None:
            prompt = self.prompt_template.replace(PROMPT_PLACEHOLDER, prompt)
        return self.encode(prompt)

    def least_tokens(self, text: str) -> int:
        """Return a lower bound on the tokens of ``text`` from its length alone.

        Each byte of a byte-level tokenizer's text is in a token, so 1,000 bytes are 8 tokens or
        more if none is longer than 128. Other tokenizers give no bound: 0.
        """
        num_bytes = len(text.encode(errors="replace"))
        return -(-num_bytes // self._longest_token) if self._longest_token else 0

    @cached_property
    def _longest_token(self) -> int:
        """Bytes of the longest token; 0 unless the tokens of a text hold all of its bytes."""
        tokenizer, vocabulary = self._tokenizer, self._tokenizer.get_vocab()
        added = tokenizer.get_added_tokens_decoder().values()
        if (
            not self._byte_level
            or tokenizer.normalizer is not None
            or not isinstance(tokenizer.pre_tokenizer, tokenizers.pre_tokenizers.ByteLevel)
            or not _byte_of_character().keys() <= vocabulary.keys()
            or any(token.lstrip or token.rstrip for token in added)
        ):
            return 0
        return max(len(token.encode()) for token in vocabulary)

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ``token_ids``; unknown ids are omitted."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        """Return the text of one token, even a special one; U+FFFD for half a character."""
        return self.decode([token_id], skip_special_tokens=False)

    def incremental_decoder(self, skip_special_tokens: bool = True) -> IncrementalDecoder:
        """Return a decoder for one new sequence."""
        kind = _ByteLevelDecoder if self._byte_level else _WindowDecoder
        return kind(self, skip_special_tokens)

    def is_special(self, token_id: int) -> bool:
        """Return whether ``skip_special_tokens`` omits this token."""
        return token_id in self.special_ids

    def is_token(self, token_id: int) -> bool:
        """Return whether the id is a token; a padded vocabulary has ids without one."""
        return self._tokenizer.id_to_token(token_id) is not None

    def is_byte(self, token_id: int) -> bool:
        """Return whether the token is one byte of byte fallback, ``<0x00>`` … ``<0xFF>``."""
        token = self._tokenizer.id_to_token(token_id)
        return token is not None and _BYTE_TOKEN.fullmatch(token) is not None

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a byte-level tokenizer's token; b"" for an unknown id."""
        known = self._bytes_of.get(token_id)
        if known is None:
            token = self._tokenizer.id_to_token(token_id) or ""
            table = _byte_of_character()
            outside = any(character not in table for character in token)
            known = token.encode() if outside else bytes(table[character] for character in token)
            self._bytes_of[token_id] = known
        return known


class _ByteLevelDecoder:
    """Decodes UTF-8 as it comes, because tokens are byte strings; the cost is linear."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        if self._skip_special_tokens and self._tokenizer.is_special(token_id):
            return ""
        return self._utf8.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class _WindowDecoder:
    """Decodes a short window repeatedly, since a token's text may depend on the tokens before it.

    A leading space is dropped only at the start of a text, so the window keeps the tokens of the
    last piece as context. ``▁Hel lo ▁you``: window [▁Hel] "Hel" → [▁Hel, lo] "Hello" gives "lo",
    window becomes [lo] → [lo, ▁you] "lo you" gives " you".
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._window: list[int] = []  # tokens of the last piece, then tokens held back
        self._held_from = 0  # first place of the window whose text is held back
        self._returned = ""  # text of window[:held_from]

    def push(self, token_id: int) -> str:
        if self._skip_special_tokens and self._tokenizer.is_special(token_id):
            return ""
        if not self._tokenizer.is_token(token_id):
            return ""  # decode omits it, so it does not end a run of bytes either
        self._window.append(token_id)
        if self._tokenizer.is_byte(token_id):
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
        return self._decode(self._window)[len(self._returned) :]

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, self._skip_special_tokens)


@cache
def _byte_of_character() -> dict[str, int]:
    """Map the printable stand-ins of byte-level BPE back to bytes.

    Printable bytes of Latin-1 represent themselves; the others, in order, are U+0100, U+0101, …
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(0x100 + place): byte for place, byte in enumerate(others)}


def tokenizer_problem(content: bytes) -> str | None:
    """Return why readers may disagree on the meaning of a tokenizer.json, or None.

    The library takes the last of two equal members, ids or added tokens, guesses the type of a
    component without one, and omits a template's tokens that are not described. libskipdec refuses
    all of these.
    """
    try:
        document = json.loads(content, **EXACT)
    except (ValueError, RecursionError) as error:
        return str(error)
    return next(_problems(document), None)


def _problems(document: Mapping[str, Any]) -> Iterator[str]:
    for name in _COMPONENTS:
        component = document.get(name)
        if not isinstance(component, dict | None):
            yield f"its {name} is {component!r:.80}; allowed: an object or null"
        elif component and not isinstance(component.get("type", ""), str):
            yield f"its {name} has the type {component['type']!r:.80}; allowed: a name"
    yield from _vocabulary_problems(document["model"].get("vocab"))
    yield from _repeated_tokens(document.get("added_tokens") or ())
    if (processor := document.get("post_processor")) is not None:
        yield from _processor_problems(processor)


def _vocabulary_problems(vocabulary: Any) -> Iterator[str]:  # noqa: ANN401  (any JSON value)
    if not isinstance(vocabulary, dict) or not vocabulary:
        return
    if (largest := max(vocabulary.values())) >= MAX_TOKENS:
        yield f"its vocabulary has the id {largest}; allowed: below {MAX_TOKENS}"
    if len(set(vocabulary.values())) < len(vocabulary):
        token_id, _ = Counter(vocabulary.values()).most_common(1)[0]
        yield f"two tokens of its vocabulary have the id {token_id}"


def _repeated_tokens(added: Any) -> Iterator[str]:  # noqa: ANN401  (any JSON value)
    for content, count in Counter(token["content"] for token in added).items():
        if count > 1 and content:
            yield f"its added_tokens have {content!r:.80} twice"


def _processor_problems(processor: Any) -> Iterator[str]:  # noqa: ANN401  (any JSON value)
    kind = processor.get("type") if isinstance(processor, dict) else None
    if kind not in _POST_PROCESSORS:
        yield f"a post-processor has the type {kind!r:.80}; allowed: {', '.join(_POST_PROCESSORS)}"
    elif kind == "Sequence":
        for inner in processor["processors"]:
            yield from _processor_problems(inner)
    elif kind == "TemplateProcessing":
        yield from _template_problems(processor)


def _template_problems(processor: Mapping[str, Any]) -> Iterator[str]:
    described = processor["special_tokens"]
    for name in ("single", "pair"):
        for part in processor[name]:
            inner = next(iter(part.values())) if isinstance(part, dict) else part
            if not isinstance(inner, dict):
                yield f"a part of its template {name!r} is {part!r:.80}; allowed: an object"
            elif name == "single" and "Sequence" in part and inner["id"] != "A":
                yield "its template for one text has a second one"
            elif name == "single" and "SpecialToken" in part and inner["id"] not in described:
                yield f"its template has the token {inner['id']!r:.80}, which is not described"
