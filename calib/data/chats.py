"""Rows that are chats: checks their messages and encodes them by a chat template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...engines.errors import UsageError
from ...runtime.tokens.chat import AnsweredChat, checked_messages
from ...runtime.tokens.tokenizer import Tokenizer

COLUMN = "messages"


@dataclass(frozen=True)
class Conversation:
    """The messages of a chat before its last answer, each a role and a text.

    >>> str(Conversation((("system", "Be brief."), ("user", "Who wrote Faust?"))))
    'system: Be brief.\\nuser: Who wrote Faust?'
    """

    messages: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        """Return the messages for people; a model reads another form."""
        return "\n".join(f"{role}: {content}" for role, content in self.messages)

    def encode(
        self, answer: str, tokenizer: Tokenizer, end_token_ids: Sequence[int]
    ) -> AnsweredChat:
        """Return the tokens of the prompt and of ``answer``.

        Raises UsageError for messages that the chat template refuses, or without a template.
        """
        if tokenizer.chat is None:
            raise UsageError("messages", "need a chat template")
        messages = [{"role": role, "content": content} for role, content in self.messages]
        messages.append({"role": "assistant", "content": answer})
        return tokenizer.chat.encode_answered(messages, end_token_ids)


Prompt = str | Conversation
"""A prompt's text, or the messages that a chat template turns into one."""


def read_conversation(row: Mapping[str, Any]) -> tuple[Conversation, str]:
    """Return a row's messages before the last one, and the text of the last, an answer.

    Raises UsageError for messages that are not allowed or do not end in an answer.
    """
    messages = checked_messages(row[COLUMN])
    *earlier, last = ((message["role"], message["content"]) for message in messages)
    if last[0] != "assistant" or not last[1].strip():
        raise UsageError(
            COLUMN, "do not end in an assistant's answer; add it, or leave out the row"
        )
    if not earlier:
        raise UsageError(COLUMN, "are only an answer; give the user's message before it")
    return Conversation(tuple(earlier)), last[1]


def require_template(
    prompts: Iterable[tuple[Prompt, str]], tokenizer: Tokenizer, subject: str = "data"
) -> None:
    """Raise UsageError if ``prompts``, given with their sources, need a missing template."""
    source = next((source for prompt, source in prompts if isinstance(prompt, Conversation)), None)
    if source is not None and tokenizer.chat is None:
        raise UsageError(
            subject,
            f"{source} has messages, and the model has no chat template; put chat_template.jinja "
            "into the checkpoint (and export it again), or give prompts and completions",
        )
