"""Tokenizer of a bundle: text to token ids, and token ids to text as they come."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import cache, cached_property
from typing import TYPE_CHECKING

import tokenizers

from ...engines.constants import integer
from ...engines.documents import lone_surrogate
from ...engines.errors import BundleError, MissingExtraError, UsageError, shown
from ...engines.manifest import PROMPT_PLACEHOLDER
from .chat import MAX_TEMPLATE_BYTES, ChatTemplate
from .decoding import (
    ByteDecoder,
    CharacterDecoder,
    IncrementalDecoder,
    WindowDecoder,
    character_steps,
    component_steps,
)
from .tokenizer_problems import normalized_contents, tokenizer_problem

if TYPE_CHECKING:
    from ...engines.bundle import EngineBundle

MAX_TOKENIZER_BYTES = integer("max_tokenizer_bytes")  # twice that of Gemma 3's 262,144 tokens

_LONG = 4096  # characters of a text that takes milliseconds
_KEEPING = frozenset({"ByteLevel", "Digits", "Metaspace", "Split"})  # pre-tokenizers


class Tokenizer:
    """Converts text to token ids and back with a ``tokenizer.json`` of the tokenizers library.

    ``encode_prompt`` puts a prompt in place of ``{prompt}`` in the ``prompt_template``, if there is
    one. ``special_ids`` are the tokens that ``skip_special_tokens`` omits;
    ``ids_of_special_tokens`` maps texts to them. ``chat`` renders messages by the bundle's chat
    template; None if it has none.
    """

    chat: ChatTemplate | None = None

    def __init__(self, tokenizer: tokenizers.Tokenizer, prompt_template: str | None = None) -> None:
        self.prompt_template = prompt_template
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.ids_of_special_tokens = {
            token.content: token_id for token_id, token in sorted(added.items()) if token.special
        }
        # The library finds special tokens by their text, which a normalizer may have changed.
        self.special_ids = frozenset(
            token_id
            for token_id in added
            if tokenizer.id_to_token(token_id) in self.ids_of_special_tokens
        )
        steps = component_steps(tokenizer.decoder)
        self._byte_level = [step["type"] for step in steps] == ["ByteLevel"]
        self._character_steps = character_steps(tokenizer.decoder)
        self._bytes_of: dict[int, bytes] = {}  # a cache

    @classmethod
    def of(cls, bundle: EngineBundle, prompt_template: str | None = None) -> Tokenizer | None:
        """Read the tokenizer of ``bundle``, if it has one, and its chat template.

        Raises BundleError as ``parse`` does.
        """
        name = bundle.manifest.tokenizer
        if name is None:
            return None
        content = bundle.read(name, MAX_TOKENIZER_BYTES)
        tokenizer = cls.parse(content, str(bundle.file(name)), prompt_template)
        if (chat := bundle.manifest.chat_template) is not None:
            subject = str(bundle.file(chat.path))
            content = bundle.read(chat.path, MAX_TEMPLATE_BYTES)
            tokenizer.chat = ChatTemplate.parse(content, chat, tokenizer, subject)
        return tokenizer

    @classmethod
    def parse(
        cls,
        document: bytes,
        subject: str,
        prompt_template: str | None = None,
        remedy: str = "export the model again",
    ) -> Tokenizer:
        """Parse the bytes of a ``tokenizer.json``; ``subject`` names it in a BundleError."""
        try:
            tokenizer = tokenizers.Tokenizer.from_buffer(document)
        except ValueError as error:
            raise BundleError(subject, f"is not a tokenizer ({error}); {remedy}") from error
        if problem := tokenizer_problem(document, tokenizer):
            raise BundleError(subject, f"is damaged: {problem}; {remedy}")
        return cls(tokenizer, prompt_template)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, including added ones; a model's vocabulary may be padded beyond it."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def tokens_from(self, token_id: int) -> list[tuple[int, str]]:
        """Return ids and tokens of the vocabulary from ``token_id`` on, in order."""
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        return sorted((index, token) for token, index in vocabulary.items() if index >= token_id)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of ``text``, by default with the post-processor's special tokens.

        Raises UsageError for text with lone surrogates, which can't be encoded.
        """
        try:
            return _token_ids(self._tokenizer, text, add_special_tokens)
        except TypeError as error:
            problem = lone_surrogate(text) or f"is {shown(text)}, not a text"
            raise UsageError("prompt", problem) from error

    def encode_plain(self, text: str) -> list[int]:
        """Return the token ids of ``text``, in which no special token is recognised."""
        return _token_ids(self._plain, text, False)

    @cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        copied = tokenizers.Tokenizer.from_str(self._tokenizer.to_str())
        copied.encode_special_tokens = True
        return copied

    def encode_prompt(self, prompt: str) -> list[int]:
        """Return the token ids that the model reads for ``prompt``, template included.

        >>> Tokenizer.parse(content, "tokenizer.json", "{prompt}\\nTL;DR:").encode_prompt("a post")
        ...     # as encode("a post\\nTL;DR:")
        """
        if self.prompt_template is not None:
            prompt = self.prompt_template.replace(PROMPT_PLACEHOLDER, prompt)
        return self.encode(prompt)

    def least_tokens(self, text: str) -> int:
        """Return a lower bound on the number of tokens of ``text`` from its length alone.

        Each byte of a text is in a token if the tokenizer is byte-level or has byte fallback, so
        1,000 bytes are 8 tokens or more if none is longer than 128. Other tokenizers give no
        bound: 0.
        """
        num_bytes = len(text.encode(errors="replace"))
        return -(-num_bytes // self._most_bytes) if self._most_bytes else 0

    @cached_property
    def _most_bytes(self) -> int:
        """The most bytes of text that a token represents; 0 if bytes may be in no token."""
        tokenizer = self._tokenizer
        added = tokenizer.get_added_tokens_decoder().values()
        shrinkage = _most_shrinkage(tokenizer)
        if (
            not shrinkage
            or not _keeps_all_bytes(tokenizer)
            or any(token.lstrip or token.rstrip for token in added)
        ):
            return 0
        texts = {*tokenizer.get_vocab(with_added_tokens=False)}
        texts |= {token.content for token in added} | normalized_contents(tokenizer).keys()
        return shrinkage * max(len(text.encode()) for text in texts)

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ``token_ids``; unknown ids are omitted."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        """Return the text of one token, even a special one; U+FFFD for half a character."""
        return self.decode([token_id], skip_special_tokens=False)

    def incremental_decoder(self, skip_special_tokens: bool = True) -> IncrementalDecoder:
        """Return a decoder for one new sequence."""

        def is_skipped(token_id: int) -> bool:
            return skip_special_tokens and token_id in self.special_ids

        token_of = self._tokenizer.id_to_token
        if self._byte_level:
            return ByteDecoder(self.token_bytes, is_skipped)
        if self._character_steps is not None:
            return CharacterDecoder(self._character_steps, token_of, is_skipped)
        return WindowDecoder(
            lambda token_ids: self.decode(token_ids, skip_special_tokens), token_of, is_skipped
        )

    def warm_up(self) -> None:
        """Do in advance what would otherwise delay the first requests.

        Raises BundleError for a chat template that is not Jinja. If one takes too much time or
        memory, or jinja2 is missing, each chat raises that error.
        """
        self.least_tokens("")  # scans the vocabulary
        if self.chat is not None:
            self.encode_plain("")
            with suppress(UsageError, MissingExtraError):
                self.chat.require_compiled()

    def close(self) -> None:
        """End the processes that render chats, if there are any."""
        if self.chat is not None:
            self.chat.close()

    def is_token(self, token_id: int) -> bool:
        """Return whether the id is a token; a padded vocabulary has ids without one."""
        return self._tokenizer.id_to_token(token_id) is not None

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token represents, with byte-level and fallback bytes decoded.

        b"" for an unknown id.
        """
        known = self._bytes_of.get(token_id)
        if known is None:
            known = self._token_bytes(self._tokenizer.id_to_token(token_id) or "")
            self._bytes_of[token_id] = known
        return known

    def _token_bytes(self, token: str) -> bytes:
        if self._character_steps is not None:
            text = self._character_steps.text_of(token)
            byte = self._character_steps.byte_of(text)
            return text.encode() if byte is None else byte
        table = _byte_of_character()
        if not self._byte_level or not table.keys() >= set(token):
            return token.encode()
        return bytes(table[character] for character in token)


def _token_ids(tokenizer: tokenizers.Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
    """Return the ids of a text; other threads run while a long one is encoded."""
    if len(text) < _LONG:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    return encoding.ids


def _most_shrinkage(tokenizer: tokenizers.Tokenizer) -> int:
    """Return how many times as long, in bytes, a text may be as its normalized text; 0: no bound.

    NFC composes U+1FBE, U+0308 and U+0301, seven bytes, to U+0390, two bytes; no ratio is larger.
    """
    most = 1
    for step in component_steps(tokenizer.normalizer):
        if step["type"] == "NFC":
            most *= 4
        elif step["type"] == "Replace":
            pattern = step["pattern"].get("String")
            most *= bool(pattern) and len(step["content"].encode()) >= len(pattern.encode())
        elif step["type"] != "Prepend":
            return 0
    return most


def _keeps_all_bytes(tokenizer: tokenizers.Tokenizer) -> bool:
    """Return whether each byte of a normalized text is in a token."""
    model, steps = tokenizer.model, component_steps(tokenizer.pre_tokenizer)
    kinds = [step["type"] for step in steps]
    if (
        not isinstance(model, tokenizers.models.BPE)
        or not _KEEPING.issuperset(kinds)
        or "ByteLevel" in kinds[:-1]
        or any(step.get("behavior") == "Removed" for step in steps)
    ):
        return False
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    if kinds and kinds[-1] == "ByteLevel":
        return _byte_of_character().keys() <= vocabulary.keys()
    return model.byte_fallback and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))


@cache
def _byte_of_character() -> dict[str, int]:
    """Map the printable stand-ins of byte-level BPE back to bytes.

    Printable bytes of Latin-1 represent themselves; the others, in order, are U+0100, U+0101, …
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(0x100 + index): byte for index, byte in enumerate(others)}
