"""ChatTemplate: the messages of a chat as the text and the tokens that a model reads.

>>> chat.encode([{"role": "user", "content": "Hello"}]).text
'<|im_start|>user\\nHello<|im_end|>\\n<|im_start|>assistant\\n'
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import islice
from typing import Any, Literal, Protocol

from ...engines.errors import BundleError, UsageError, did_you_mean, few, shown
from ...engines.manifest import ChatFile
from .spelled_tokens import END, SpelledTokens, without_noncharacters
from .template_process import TemplateProcesses
from .template_variables import plain_value

MAX_TEMPLATE_BYTES = 1 << 20
MAX_MESSAGES = 4096
MAX_CHARACTERS = 1 << 22  # of all messages of a chat
ROLES = ("system", "user", "assistant", "developer")
_CONTENT = "a text, or a list of text parts"
ASKS_FOR_NOTHING: tuple[object, ...] = (False, [], {})
"""Values, in addition to null, with which an unsupported field counts as absent."""

SpecialTokens = Literal["escape", "allow"]
"""Whether special tokens that a message spells become plain text or the tokens."""

_OWN_VARIABLES = ("messages", "add_generation_prompt", "tools", "documents")


class ChatTokenizer(Protocol):
    """The part of a tokenizer that chats need."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text, with special tokens that it spells."""

    def encode_plain(self, text: str) -> list[int]:
        """Return the ids of a text, in which special tokens are ordinary text."""

    def least_tokens(self, text: str) -> int:
        """Return a lower bound on the number of a text's tokens, from its length alone."""

    @property
    def ids_of_special_tokens(self) -> Mapping[str, int]:
        """The ids of all special tokens by their texts."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered chat: its text, and the ids of its tokens."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AnsweredChat:
    """A chat that ends in an answer: its prompt, and the ids of the answer including its end."""

    prompt: ChatPrompt
    answer_token_ids: tuple[int, ...]


class ChatTemplate:
    """Renders messages by the chat template of a bundle, and encodes them.

    Texts and tokens are those of transformers' ``apply_chat_template``: the template writes all
    special tokens, so the tokenizer adds none. ``special_tokens`` are those that templates know by
    name, for example ``{"bos_token": "<s>"}``. ``now`` is the clock of templates that show the
    date. ``subject`` names the template's file in errors. Any thread may call it.
    """

    def __init__(
        self,
        source: str,
        tokenizer: ChatTokenizer,
        *,
        special_tokens: Mapping[str, str | Sequence[str]] | None = None,
        subject: str = "chat template",
    ) -> None:
        self._tokenizer = tokenizer
        self.now: Callable[[], datetime] = datetime.now
        self._special_tokens = {
            name: text if isinstance(text, str) else list(text)
            for name, text in (special_tokens or {}).items()
        }
        self._renames_developer = "developer" not in source
        self._processes = TemplateProcesses(source, subject)

    @classmethod
    def parse(
        cls, content: bytes, described: ChatFile, tokenizer: ChatTokenizer, subject: str
    ) -> ChatTemplate:
        """Read a bundle's template, which is compiled on first use.

        Raises BundleError if it is not UTF-8.
        """
        try:
            source = content.decode()
        except UnicodeDecodeError as error:
            raise BundleError(subject, f"is not UTF-8 at byte {error.start}") from error
        return cls(source, tokenizer, special_tokens=described.special_tokens, subject=subject)

    def require_compiled(self) -> None:
        """Compile the template, so that the first chat need not wait.

        Raises BundleError if it is not Jinja, UsageError if it takes too much time or memory, and
        MissingExtraError without jinja2.
        """
        self._processes.variables()

    @property
    def variables(self) -> frozenset[str]:
        """Names of the variables that the template reads; raises as `require_compiled`."""
        return self._processes.variables()

    def close(self) -> None:
        """End the processes that render; later calls raise ClosedError. From any thread."""
        self._processes.close()

    def encode(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        special_tokens: SpecialTokens = "escape",
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
    ) -> ChatPrompt:
        """Return the text and the tokens of a chat, up to where the answer begins.

        With "escape", a special token that a message spells is read as ordinary text, so that a
        message can't end its turn and begin another's; with "allow" it becomes that token. With
        ``continue_final_message`` the text ends within the last message, which is the beginning of
        the answer. Without it, a chat may not end in an answer. ``chat_template_kwargs``: variables
        of the template, for example ``enable_thinking``. A chat that must have more than
        ``max_tokens`` tokens is refused before it is tokenized. Raises UsageError for messages that
        are not allowed, or that the template refuses.
        """
        checked = checked_messages(messages)
        variables = self._checked(chat_template_kwargs)
        is_answered = checked[-1]["role"] == "assistant"
        if continue_final_message and not (is_answered and checked[-1]["content"].strip()):
            raise _refusal(
                "do not end in a text of the assistant, which continue_final_message continues"
            )
        if is_answered and not continue_final_message:
            raise _refusal(
                "end in a message of the assistant; continue it by continue_final_message, or end "
                "in a message of the user"
            )
        if special_tokens == "escape":
            checked, variables = self._escaped(checked), self._escaped_value(variables)
        else:
            checked = [{**one, "content": without_noncharacters(one["content"])} for one in checked]
        if continue_final_message:
            rendered = self._render_open(checked, variables)
        else:
            rendered = self._render(checked, variables, True)
        return self._encoded(rendered, max_tokens)

    def encode_answered(
        self, messages: Iterable[Mapping[str, Any]], end_token_ids: Sequence[int]
    ) -> AnsweredChat:
        """Return the prompt before the last message, as `encode` does, and that message's tokens.

        They are what the template writes after the prompt, up to the first end of text in it; if it
        writes none of ``end_token_ids``, the first of these is added. An answer "Hello!" after
        "<|im_start|>assistant\\n" has the tokens of "Hello!<|im_end|>". Raises UsageError as
        `encode`, and if the rendered answer does not begin with the rendered prompt.
        """
        checked = self._escaped(checked_messages(messages))
        before, whole = self._render(checked[:-1], {}, True), self._render(checked, {}, False)
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
            ids = self._encoded(whole[len(before) :]).token_ids
        ends = [index for index, token_id in enumerate(ids) if token_id in end_token_ids]
        answer = ids[: ends[0] + 1] if ends else (*ids, *end_token_ids[:1])
        return AnsweredChat(prompt, answer)

    def _checked(self, variables: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return variables for the template as plain values. Raises UsageError for unknown ones."""
        subject = "chat_template_kwargs"
        if variables is None or variables == {}:
            return {}
        if not isinstance(variables, Mapping):
            raise UsageError(subject, f"is {shown(variables)}; allowed: an object of variables")
        plain: dict[str, Any] = plain_value(variables, subject)
        own = (*_OWN_VARIABLES, *self._special_tokens)
        known = self._processes.variables().difference(own)
        names = ", ".join(sorted(known)) or "no variables"
        problems = [
            f"has {shown(name)}, which the chat template does not read; "
            f"{did_you_mean(name, known, among=len(plain))}it reads {names}"
            for name in plain
            if name not in known
        ]
        if problems:
            raise UsageError(subject, *few(problems))
        return plain

    def _escaped(self, messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
        """Return the messages with marks in place of the special tokens that they spell."""
        marked = self._spelled.marked
        return [{"role": one["role"], "content": marked(one["content"])} for one in messages]

    def _escaped_value(self, value: Any) -> Any:  # noqa: ANN401  (any JSON value)
        """Return a value of the template's variables with marks in all texts."""
        match value:
            case str():
                return self._spelled.marked(value)
            case list():
                return [self._escaped_value(one) for one in value]
            case dict():
                return {name: self._escaped_value(one) for name, one in value.items()}
        return value

    @cached_property
    def _spelled(self) -> SpelledTokens:
        return SpelledTokens(tuple(self._tokenizer.ids_of_special_tokens))

    def _encoded(self, rendered: str, max_tokens: int | None = None) -> ChatPrompt:
        """Return rendered text with special tokens in place of marks, and its ids."""
        parts = list(self._spelled.parts(rendered))
        whole = "".join(text for text, _ in parts)
        least = 0 if max_tokens is None else self._tokenizer.least_tokens(whole)
        if max_tokens is not None and least > max_tokens:
            raise _refusal(f"have at least {least} tokens; the bundle holds {max_tokens} positions")
        spelled: dict[str, list[int]] = {}
        ids: list[int] = []
        for text, is_spelled in parts:
            if not is_spelled:
                ids += self._tokenizer.encode(text, add_special_tokens=False) if text else []
                continue
            if text not in spelled:
                spelled[text] = self._tokenizer.encode_plain(text)
            ids += spelled[text]
        return ChatPrompt(whole, tuple(ids))

    def _render_open(
        self, messages: Sequence[Mapping[str, str]], variables: Mapping[str, Any]
    ) -> str:
        """Return the text up to the end of the last message's content."""
        *before, last = messages
        text = last["content"]
        rendered = self._render([*before, {**last, "content": f"{text}{END} "}], variables, False)
        begin, end, rest = rendered.rpartition(END)
        if not end or text.strip() not in begin:
            raise UsageError(
                "continue_final_message",
                "can't be used with this chat template, which drops or changes the text of the "
                "last message",
            )
        return begin if rest.startswith(" ") else begin.rstrip()  # the template trims the content

    def _render(
        self,
        messages: Sequence[Mapping[str, str]],
        variables: Mapping[str, Any],
        add_generation_prompt: bool,
    ) -> str:
        if self._renames_developer:
            messages = [
                {**one, "role": "system"} if one["role"] == "developer" else one for one in messages
            ]
        own = {
            "messages": messages,
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        return self._processes.render(self.now(), {**self._special_tokens, **variables, **own})


def checked_messages(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return messages as plain objects of ``role`` and ``content``.

    ``content`` is a text, or a list of OpenAI's text parts, which are joined by line feeds:
    ``[{"type": "text", "text": "Hello"}]``. Unsupported fields of messages and parts count as
    absent if they are None, False, or an empty list or object. Raises UsageError with the problem
    of the first message that is not allowed.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise _refusal(f"is {shown(messages)}; allowed: a list of objects with role and content")
    listed = list(islice(messages, MAX_MESSAGES + 1))
    if not listed:
        raise _refusal("is empty; give at least one message")
    if len(listed) > MAX_MESSAGES:
        raise _refusal(f"has more than {MAX_MESSAGES:,} messages; give fewer")
    checked = [_checked_message(index, message) for index, message in enumerate(listed)]
    characters = sum(len(message["content"]) for message in checked)
    if characters > MAX_CHARACTERS:
        raise _refusal(f"have {characters:,} characters; allowed: {MAX_CHARACTERS:,}")
    return checked


def _checked_message(index: int, message: object) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise _refusal(f"has {shown(message)} at {index}; allowed: an object with role and content")
    given = {name: value for name, value in message.items() if value is not None}
    for name, allowed in (("role", ", ".join(ROLES)), ("content", _CONTENT)):
        if name not in given:
            raise _refusal(f"has no {name} at {index}; allowed: {allowed}")
    role = given.pop("role")
    if role not in ROLES:
        raise _refusal(f"has role {shown(role)} at {index}; allowed: {', '.join(ROLES)}")
    content = _text_of(index, given.pop("content"))
    if unsupported := _asked(given):
        names = ", ".join(map(str, unsupported[:10]))
        raise _refusal(f"has {names:.200} at {index}, which is not supported; leave it out")
    return {"role": str(role), "content": content}


def _asked(fields: Mapping[Any, object]) -> list[object]:
    """Return the names of fields that do not count as absent."""
    return [
        name
        for name, value in fields.items()
        if value is not None and value not in ASKS_FOR_NOTHING
    ]


def _text_of(index: int, content: object) -> str:
    if isinstance(content, str):
        return str(content)
    if not isinstance(content, list | tuple) or not content:
        raise _refusal(f"has content {shown(content)} at {index}; allowed: {_CONTENT}")
    texts = []
    for part in content:
        match part:
            case {"type": "text", "text": str(text), **others} if not _asked(others):
                texts.append(text)
            case _:
                raise _refusal(
                    f"has the part {shown(part)} at {index}; allowed: "
                    '{"type": "text", "text": …}: no images, audio or files'
                )
    return "\n".join(texts)


def _refusal(problem: str) -> UsageError:
    return UsageError("messages", problem)
