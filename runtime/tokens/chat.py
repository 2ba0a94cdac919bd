"""ChatTemplate: the messages of a chat as the text and the tokens that a model reads.

>>> chat.encode([{"role": "user", "content": "Hello"}]).text
'<|im_start|>user\\nHello<|im_end|>\\n<|im_start|>assistant\\n'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ...engines.errors import BundleError, UsageError, shown
from ...engines.host.installation import require_extra
from ...engines.manifest import ChatFile

if TYPE_CHECKING:
    from .sandbox import Sandbox

MAX_TEMPLATE_BYTES = 1 << 20
MAX_MESSAGES = 4096
ROLES = ("system", "user", "assistant")
ASKS_FOR_NOTHING: tuple[object, ...] = (False, [], {})
"""Values, beside null, of fields that are not supported: such a field is as good as absent."""

SpecialTokens = Literal["escape", "allow"]
"""What becomes of special tokens that a message spells: plain text, or the tokens."""

# Noncharacters, which no text has: they stand around the number of a token in rendered text.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_MARK = re.compile(f"{_OPEN}(\\d+){_CLOSE}")
_MARKS = str.maketrans({_OPEN: "\ufffd", _CLOSE: "\ufffd"})


class ChatTokenizer(Protocol):
    """What a chat needs of a tokenizer."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text in which special tokens may be spelled."""

    def encode_plain(self, text: str) -> list[int]:
        """Return the ids of a text whose special tokens are ordinary text."""

    def least_tokens(self, text: str) -> int:
        """Return a lower bound on the tokens of a text, from its length alone."""

    def token_id(self, token: str) -> int | None:
        """Return the id of a token, if there is one."""

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """The texts of all special tokens."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered chat: its text, and the ids of its tokens."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AnsweredChat:
    """A chat that ends in an answer: its prompt, and the ids of the answer with its end."""

    prompt: ChatPrompt
    answer_token_ids: tuple[int, ...]


class ChatTemplate:
    """Renders messages by the chat template of a bundle, and encodes them.

    The template writes all special tokens, so the tokenizer adds none, except for a beginning of
    text: if the tokenizer puts ``bos_token`` before every text and the template does not write it,
    it is added, once. ``now`` is the clock of templates that show the date. ``subject`` names the
    template's file in errors. Safe from all threads.
    """

    def __init__(
        self,
        source: str,
        tokenizer: ChatTokenizer,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        subject: str = "chat template",
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._source = source
        self._tokenizer = tokenizer
        self._subject = subject
        self._now = now
        self._bos_token = bos_token
        texts = {"bos_token": bos_token, "eos_token": eos_token}
        self._texts = {name: text for name, text in texts.items() if text is not None}

    @classmethod
    def parse(
        cls, content: bytes, described: ChatFile, tokenizer: ChatTokenizer, subject: str
    ) -> ChatTemplate:
        """Read a bundle's template. Raises BundleError for one that is not UTF-8 or not Jinja.

        Without jinja2, which an extra installs, it is compiled when it is first used.
        """
        try:
            source = content.decode()
        except UnicodeDecodeError as error:
            raise BundleError(subject, f"is not UTF-8 at byte {error.start}") from error
        template = cls(
            source,
            tokenizer,
            bos_token=described.bos_token,
            eos_token=described.eos_token,
            subject=subject,
        )
        if find_spec("jinja2") is not None:
            template.require_compiled()
        return template

    def require_compiled(self) -> None:
        """Compile the template. Raises BundleError and MissingExtraError."""
        assert self._sandbox is not None

    @cached_property
    def _sandbox(self) -> Sandbox:
        require_extra("chat", "chat templates")
        from .sandbox import Sandbox

        try:
            return Sandbox(self._source, now=self._now)
        except ValueError as error:
            raise BundleError(
                self._subject, f"is not a template ({error}); correct it and export again"
            ) from error

    def render(
        self, messages: Iterable[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> str:
        """Return the text of a chat, with special tokens as the messages spell them.

        ``add_generation_prompt``: the text ends where the assistant's answer begins. Raises
        UsageError for messages that are not allowed, or that the template refuses.
        """
        return self._render(checked_messages(messages), add_generation_prompt)

    def encode(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        special_tokens: SpecialTokens = "escape",
        add_generation_prompt: bool = True,
        max_tokens: int | None = None,
    ) -> ChatPrompt:
        """Return the text and the tokens of a chat; raises as `render`.

        With "escape", a special token that a message spells is read as ordinary text, so that a
        message can't end its turn and begin another's; with "allow" it becomes that token. A chat
        that surely has more than ``max_tokens`` tokens is refused before they are made.
        """
        checked = checked_messages(messages)
        if special_tokens == "escape":
            checked = self._escaped(checked)
        rendered = self._render(checked, add_generation_prompt)
        if (
            max_tokens is not None
            and (least := self._tokenizer.least_tokens(rendered)) > max_tokens
        ):
            raise _refusal(f"have at least {least} tokens; the bundle holds {max_tokens} positions")
        return self._encoded(rendered)

    def encode_answered(
        self, messages: Iterable[Mapping[str, Any]], end_token_ids: Sequence[int]
    ) -> AnsweredChat:
        """Return the prompt before the last message, as `encode` does, and that message's tokens.

        They are what the template writes behind the prompt, up to the first end of text in it; if
        it writes none of ``end_token_ids``, the first of these follows. An answer "Hello!" behind
        "<|im_start|>assistant\\n" has the tokens of "Hello!<|im_end|>". Raises UsageError as
        `encode`, and for a template that begins an answer in another way than it ends a prompt.
        """
        checked = self._escaped(checked_messages(messages))
        before, whole = self._render(checked[:-1], True), self._render(checked, False)
        if not whole.startswith(before):
            raise UsageError(
                "chat template",
                "begins an answer in another way than it ends a prompt; use another one, or give "
                "prompts and completions",
            )
        prompt, text = self._encoded(before), self._encoded(whole)
        size = len(prompt.token_ids)
        ids = text.token_ids[size:]
        if text.token_ids[:size] != prompt.token_ids:  # a token spans the end of the prompt
            ids = self._encoded(whole[len(before) :], begins=False).token_ids
        ends = [place for place, token_id in enumerate(ids) if token_id in end_token_ids]
        answer = ids[: ends[0] + 1] if ends else (*ids, *end_token_ids[:1])
        return AnsweredChat(prompt, answer)

    def _escaped(self, messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
        """Return the messages with marks in the place of special tokens that they spell."""
        return [{"role": one["role"], "content": self._marked(one["content"])} for one in messages]

    def _encoded(self, rendered: str, *, begins: bool = True) -> ChatPrompt:
        """Return rendered text with special tokens in the place of marks, and its ids.

        ``begins``: it may need the tokenizer's beginning of text.
        """
        names = self._tokenizer.special_tokens
        parts = _MARK.split(rendered)  # text, number, text, …, text
        spelled = [names[int(number)] for number in parts[1::2]]
        texts = [text.translate(_MARKS) for text in parts[::2]]
        ids = self._leading_ids(texts[0]) if begins else []
        for place, text in enumerate(texts):
            ids += self._tokenizer.encode(text, add_special_tokens=False) if text else []
            if place < len(spelled):
                ids += self._tokenizer.encode_plain(spelled[place])
        whole = "".join(text + name for text, name in zip(texts, [*spelled, ""], strict=True))
        return ChatPrompt(whole, tuple(ids))

    def _render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:
        variables = {
            "messages": messages,
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        return self._sandbox.render(variables | self._texts)

    def _leading_ids(self, text: str) -> list[int]:
        """Return the beginning of text, if the tokenizer adds it and ``text`` does not have it."""
        bos = self._bos_token
        token_id = None if bos is None else self._tokenizer.token_id(bos)
        if bos is None or token_id is None or text.startswith(bos):
            return []
        return [token_id] if self._tokenizer.encode("")[:1] == [token_id] else []

    def _marked(self, content: str) -> str:
        """Return ``content`` with a number between noncharacters for each special token."""
        content = content.translate(_MARKS)
        if self._spelling is None:
            return content
        numbers = self._numbers
        return self._spelling.sub(lambda found: f"{_OPEN}{numbers[found[0]]}{_CLOSE}", content)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {text: number for number, text in enumerate(self._tokenizer.special_tokens)}

    @cached_property
    def _spelling(self) -> re.Pattern[str] | None:
        texts = sorted(filter(str.strip, self._numbers), key=len, reverse=True)  # the longest first
        return re.compile("|".join(map(re.escape, texts))) if texts else None


def checked_messages(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return messages as plain objects of ``role`` and ``content``.

    ``content`` is a text, or a list of OpenAI's text parts, which are joined by line feeds:
    ``[{"type": "text", "text": "Hello"}]``. Fields that ask for nothing (None, False, an empty list
    or object) count as absent. Raises UsageError with the problem of the first message that is not
    allowed.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise _refusal(f"is {shown(messages)}; allowed: a list of objects with role and content")
    listed = list(islice(messages, MAX_MESSAGES + 1))
    if not listed:
        raise _refusal("is empty; give at least one message")
    if len(listed) > MAX_MESSAGES:
        raise _refusal(f"has more than {MAX_MESSAGES:,} messages; give fewer")
    return [_checked_message(place, message) for place, message in enumerate(listed)]


def _checked_message(place: int, message: object) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise _refusal(f"has {shown(message)} at {place}; allowed: an object with role and content")
    given = {name: value for name, value in message.items() if value is not None}
    role = given.pop("role", None)
    if role not in ROLES:
        raise _refusal(f"has role {shown(role)} at {place}; allowed: {', '.join(ROLES)}")
    content = _text_of(place, given.pop("content", None))
    if unsupported := [name for name, value in given.items() if value not in ASKS_FOR_NOTHING]:
        names = ", ".join(map(str, unsupported[:10]))
        raise _refusal(f"has {names:.200} at {place}, which is not supported; leave it out")
    return {"role": str(role), "content": content}


def _text_of(place: int, content: object) -> str:
    if isinstance(content, str):
        return str(content)
    if not isinstance(content, list | tuple) or not content:
        raise _refusal(
            f"has content {shown(content)} at {place}; allowed: a text, or a list of text parts"
        )
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(text, str) or len(part) > 2:
            raise _refusal(
                f"has a part of type {shown(kind)} at {place}; allowed: "
                '{"type": "text", "text": …}: no images, audio or files'
            )
        texts.append(text)
    return "\n".join(texts)


def _refusal(problem: str) -> UsageError:
    return UsageError("messages", problem)
