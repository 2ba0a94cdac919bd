"""POST /v1/chat/completions: OpenAI's requests and answers for the messages of a chat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, WithJsonSchema
from typing_extensions import override

from ...requests.request import MessagesPrompt
from ...tokens.chat import ASKS_FOR_NOTHING, ROLES, SpecialTokens
from ...tokens.outputs import Logprob
from ...tokens.sampling import LogprobCount
from .completions import TextAnswer
from .config import MAX_LOGPROBS
from .documents import TokenNames, shown_logprob
from .protocol import UNUSED, TextRequest

_MESSAGES: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role", "content"],
        "properties": {
            "role": {"enum": list(ROLES)},
            "content": {
                "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]
            },
        },
    },
}
_FORMS = 'a list of messages, e.g. [{"role": "user", "content": "Hello"}]'
_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {  # with the values that count as absent
    **dict.fromkeys(("tools", "functions", "audio", "prediction", "metadata"), ASKS_FOR_NOTHING),
    **dict.fromkeys(("moderation", "prompt_cache_options"), ASKS_FOR_NOTHING),
    **dict.fromkeys(("tool_choice", "function_call"), ("none", "auto", *ASKS_FOR_NOTHING)),
    "parallel_tool_calls": (True, *ASKS_FOR_NOTHING),
    "modalities": (["text"], *ASKS_FOR_NOTHING),
    "response_format": ({"type": "text"}, *ASKS_FOR_NOTHING),
    "web_search_options": (False,),  # an empty object requests a search
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "service_tier": ("auto", "default"),
    "prompt_cache_retention": ("in_memory",),
    "store": (False,),
}


class ChatRequest(TextRequest):
    """A body of /v1/chat/completions; fields that are not given, or null, have their defaults."""

    model_config = ConfigDict(title="ChatRequest")

    messages: Annotated[Any, WithJsonSchema(_MESSAGES)] = Field(description=_FORMS)
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        description="an integer from 1, or null: up to the model's limit",
    )
    max_completion_tokens: int | None = Field(
        default=None, ge=1, description="an integer from 1: another name of max_tokens"
    )
    logprobs: bool = Field(default=False, description="true or false")
    top_logprobs: LogprobCount = Field(
        default=None,
        ge=0,
        le=MAX_LOGPROBS,
        description=f"an integer from 0 to {MAX_LOGPROBS}: with logprobs, tokens reported beside "
        "the chosen one",
    )
    chat_template_kwargs: Annotated[
        Any, WithJsonSchema({"type": "object", "additionalProperties": True})
    ] = Field(
        default=None,
        description='variables of the chat template, e.g. {"enable_thinking": false}',
    )
    continue_final_message: bool = Field(
        default=False, description="true: the last message is the beginning of the answer"
    )
    add_generation_prompt: bool | None = Field(
        default=None, description="true, or false with continue_final_message"
    )

    # OpenAI's two fields that replace `user`.
    safety_identifier: str | None = Field(default=None, description=UNUSED)
    prompt_cache_key: str | None = Field(default=None, description=UNUSED)

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **TextRequest.unsupported,
        **_UNSUPPORTED,
    }
    content: ClassVar[str] = "messages"
    content_forms: ClassVar[str] = _FORMS

    @override
    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.add_generation_prompt is self.continue_final_message:
            yield (
                f"`add_generation_prompt` is {self.add_generation_prompt}; allowed: true, or false "
                "with continue_final_message"
            )
        if None not in (self.max_tokens, self.max_completion_tokens) and (
            self.max_tokens != self.max_completion_tokens
        ):
            yield (
                f"`max_completion_tokens` is {self.max_completion_tokens}, but max_tokens is "
                f"{self.max_tokens}; give one of them"
            )
        if self.top_logprobs and not self.logprobs:
            yield "`top_logprobs` needs logprobs to be true"

    @property
    @override
    def length(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    @override
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    @override
    def prompts(self) -> list[MessagesPrompt]:
        return self.prompts_with("escape")

    @override
    def prompts_with(self, special_tokens: SpecialTokens) -> list[MessagesPrompt]:
        return [
            {
                "messages": self.messages,
                "special_tokens": special_tokens,
                "chat_template_kwargs": self.chat_template_kwargs,
                "continue_final_message": self.continue_final_message,
            }
        ]

    @override
    def subject(self, index: int) -> str:
        return "chat"


class ChatAnswer(TextAnswer):
    """The answer to a body of /v1/chat/completions."""

    id_prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    @override
    def _shaped(
        self,
        choice: dict[str, Any],
        part: Literal["message", "delta"],
        token_ids: Sequence[int],
        logprobs: Sequence[Mapping[int, Logprob]] | None,
    ) -> dict[str, Any]:
        text = choice.pop("text")
        content = {"content": text} if text or part == "message" else {}
        if part == "message":
            content = {"role": "assistant"} | content
        shown = {"logprobs": self._logprobs(token_ids, logprobs)}
        return {"index": choice["index"], part: content} | choice | shown

    @override
    def _opening(self, index: int) -> Iterator[dict[str, object]]:
        role = {"role": "assistant", "content": ""}
        yield {"index": index, "delta": role, "logprobs": None, "finish_reason": None}

    def _logprobs(
        self, token_ids: Sequence[int], logprobs: Sequence[Mapping[int, Logprob]] | None
    ) -> dict[str, Any] | None:
        """Return the log-probabilities of tokens in the form of chats; None without any."""
        if not logprobs:
            return None
        top = self._body.num_logprobs or 0
        entries = zip(token_ids, logprobs, strict=True)
        content = [_token_entry(token, one, top, self._names) for token, one in entries]
        return {"content": content, "refusal": None}


def _token_entry(
    token_id: int, logprobs: Mapping[int, Logprob], top: int, names: TokenNames
) -> dict[str, Any]:
    best = sorted(logprobs.items(), key=lambda item: item[1].rank or 0)[:top]
    return _named(token_id, logprobs[token_id], names) | {
        "top_logprobs": [_named(token, one, names) for token, one in best]
    }


def _named(token_id: int, one: Logprob, names: TokenNames) -> dict[str, Any]:
    return {
        "token": names[token_id],
        "logprob": shown_logprob(one),
        "bytes": list(names.bytes_of(token_id)),
    }
