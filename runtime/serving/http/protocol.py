"""Errors of OpenAI's API, the common part of its requests, and requests for completions."""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema
from starlette.responses import JSONResponse
from typing_extensions import override

from ....engines.checking import field_problems
from ....engines.documents import parse_json
from ....engines.errors import (
    BundleError,
    ClosedError,
    ConfigurationError,
    OverloadedError,
    ScheduleError,
    SkipDecError,
    UsageError,
    brief,
    shown,
)
from ...drafting.resolver import wants_drafts
from ...requests.request import Prompt
from ...tokens.chat import ASKS_FOR_NOTHING, SpecialTokens
from ...tokens.sampling import LogprobCount, SamplingParams, StopStrings, as_tuple
from .config import (
    MAX_COMPLETIONS,
    MAX_ENTRIES,
    MAX_LOGPROBS,
    MAX_PROMPTS,
    MAX_STOP_CHARACTERS,
    MAX_STOPS,
)

# A long body is parsed in a thread. The JSON parser holds the GIL while it makes lists, objects and
# texts, so their number is limited. Numbers, of which a body may have many, are made by Python
# functions, between which other threads run.
MAX_CONTAINERS = 1_024  # lists and objects
MAX_TEXTS = 12_000  # including names of fields
_SMALL = 4_096  # bytes; parsing fewer takes less than a millisecond

_SUBJECT = re.compile(r"'?(\w+)'? ")  # how a problem of a field begins
_IDS = {"type": "array", "items": {"type": "integer"}}
_PROMPT = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "maxItems": MAX_PROMPTS},
        _IDS,
        {"type": "array", "items": _IDS, "maxItems": MAX_PROMPTS},
    ]
}
_STREAM_OPTIONS = ("include_usage", "include_obfuscation")  # of OpenAI's API
_STOP = (
    f"a non-empty string of up to {MAX_STOP_CHARACTERS} characters or a list of up to {MAX_STOPS} "
    "such"
)
UNUSED = "any text; it is not used"
_FORMS = f"a text, token ids, or a list of up to {MAX_PROMPTS} such"


@dataclass(eq=False)
class ApiError(Exception):
    """An error as an answer.

    ``kind``: OpenAI's ``type``. ``param``: the invalid field. ``code``: for programs.
    """

    status: int
    message: str
    kind: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, object]:
        """The body."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> JSONResponse:
        """The whole answer."""
        return JSONResponse(self.document(), self.status, headers=dict(self.headers))


def api_error(error: ApiError | SkipDecError) -> ApiError:
    """Translate an error of skipdec into an ApiError."""
    if isinstance(error, ApiError):
        return error
    message = _client_message(error)
    match error:
        case OverloadedError():
            wait = {"Retry-After": str(math.ceil(error.retry_after))}
            return ApiError(429, message, "rate_limit_error", code="queue_full", headers=wait)
        case ClosedError():
            return unavailable(message)
        case ConfigurationError():
            found = _SUBJECT.match(error.problems[0])
            return ApiError(400, message, param=found and found[1])
        case ScheduleError():
            return ApiError(400, message, param="schedule")
        case UsageError():
            return ApiError(400, message, param=error.subject if error.subject.isalpha() else None)
    return ApiError(500, message, "server_error", code="engine_failed")


def _client_message(error: SkipDecError) -> str:
    """Return an error's message for clients, without names of classes and files."""
    message = brief("; ".join(error.problems))
    hides = isinstance(error, BundleError | ClosedError | ConfigurationError)
    is_path = "/" in error.subject and not isinstance(error, ScheduleError)  # 4/2 is its own text
    is_name = error.subject[:1].isupper() or is_path
    return message if hides or is_name else f"{error.subject}: {message}"


def unavailable(reason: str) -> ApiError:
    """Return a 503 for a server that is loading, draining or closed; OpenAI's clients retry it."""
    headers = {"Retry-After": "1"}
    return ApiError(503, reason, "service_unavailable", code="unavailable", headers=headers)


def is_small(body: bytes) -> bool:
    """Return True if the body is short enough to be parsed in the event loop's thread."""
    return len(body) <= _SMALL


def parse_body(body: bytes) -> Any:  # noqa: ANN401  (any JSON value)
    """Return the JSON value of a body. Raises UsageError if it is not JSON or holds too much."""
    if is_small(body):
        return parse_json(body, UsageError, subject="body")
    bare = body.replace(rb"\\", b"").replace(rb"\"", b"")  # the quotes left delimit texts
    texts = bare.count(b'"') // 2
    if texts > MAX_TEXTS:
        raise _too_much("texts, names of fields included", texts, MAX_TEXTS)
    outside = b"".join(bare.split(b'"')[::2])
    containers = outside.count(b"[") + outside.count(b"{")
    if containers > MAX_CONTAINERS:
        raise _too_much("lists and objects, nested ones included", containers, MAX_CONTAINERS)
    return parse_json(body, UsageError, subject="body", yields=True)


def _too_much(kind: str, count: int, most: int) -> UsageError:
    return UsageError("body", f"has {count:,} {kind}; allowed: {most:,}; send several requests")


class TextRequest(SamplingParams):
    """The common part of bodies for completions and chats; null counts as absent.

    Sampling fields are those of SamplingParams with lower limits. Unknown fields are refused rather
    than silently ignored.
    """

    model: str | None = Field(
        default=None, description="the name of a bundle; may be left out where one is served"
    )
    n: int = Field(
        default=1,
        ge=1,
        le=MAX_COMPLETIONS,
        description=f"an integer from 1 to {MAX_COMPLETIONS}: completions per prompt",
    )
    logprobs: LogprobCount = Field(
        default=None,
        ge=0,
        le=MAX_LOGPROBS,
        description=f"an integer from 0 to {MAX_LOGPROBS}: tokens reported beside the chosen one",
    )
    stream: bool = Field(default=False, description="true: server-sent events as tokens come")
    stop: Annotated[StopStrings, BeforeValidator(as_tuple)] = Field(
        default=(), max_length=MAX_STOPS, description=_STOP
    )
    stream_options: dict[str, bool | None] | None = Field(
        default=None, description='{"include_usage": true} with stream'
    )
    user: str | None = Field(default=None, description=UNUSED)
    schedule: str | None = Field(
        default=None, max_length=500, description="an exit schedule that /v1/schedules lists"
    )
    timeout: float | None = Field(
        default=None, gt=0, description="seconds above 0 after which the texts end as they are"
    )
    draft: Annotated[Any, WithJsonSchema({"enum": ["off"]})] = Field(
        default=None, description="off: run without drafts, which changes no text"
    )

    # OpenAI's fields that are refused with a message of their own, unless they count as absent.
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {"logit_bias": ASKS_FOR_NOTHING}
    content: ClassVar[str] = "prompt"  # the field with the prompts or messages
    content_forms: ClassVar[str] = _FORMS

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """Read a body. Raises UsageError with all problems."""
        document = parse_body(body)
        if not isinstance(document, dict):
            raise UsageError("body", f"is not a JSON object; give one with {cls.content}")
        for name, value in document.items():  # before entries are copied, checked and shown
            entries = len(value) if isinstance(value, list | dict) else 0
            if entries > MAX_ENTRIES and name != cls.content:
                raise ConfigurationError(
                    cls.__name__,
                    f"`{brief(name)}` has {entries:,} entries; allowed: {MAX_ENTRIES:,}",
                )
        given = {name: value for name, value in document.items() if value is not None}
        return cls(**cls._supported(given))

    @classmethod
    def _supported(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return a body's fields without unsupported ones that count as absent.

        Raises ConfigurationError for other unsupported fields.
        """
        problems = [
            f"`{name}` is {shown(fields[name])}, which is not supported; leave it out"
            for name, neutral in cls.unsupported.items()
            if name in fields and fields[name] not in neutral
        ]
        if problems:
            raise ConfigurationError(cls.__name__, *problems)
        return {name: value for name, value in fields.items() if name not in cls.unsupported}

    @classmethod
    def _describe(cls, item: Any, values: Mapping[str, Any]) -> Iterator[str]:  # noqa: ANN401
        if item["type"] == "missing":
            yield f"`{cls.content}` is missing; give {cls.content_forms}"
        else:
            yield from super()._describe(item, values)

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if any(len(text) > MAX_STOP_CHARACTERS for text in self.stop):
            yield f"`stop` is {shown(list(self.stop))}; allowed: {_STOP}"
        options = self.stream_options or {}
        if any(options.values()) and not self.stream:
            yield "`stream_options` is for streams; set stream, or leave it out"
        wanted = {name for name, value in options.items() if value or name not in _STREAM_OPTIONS}
        if unknown := wanted - {"include_usage"}:
            yield f"`stream_options` has {', '.join(sorted(unknown)):.80}; allowed: include_usage"
        yield from field_problems("draft", wants_drafts, self.draft)

    @property
    @abstractmethod
    def prompts(self) -> Sequence[Prompt]:
        """One entry per prompt."""

    def prompts_with(self, special_tokens: SpecialTokens) -> Sequence[Prompt]:
        """Return the prompts; those of messages have the option ``special_tokens``."""
        return self.prompts

    def subject(self, index: int) -> str:
        """Return the name of a prompt in errors."""
        return f"prompt {index}"

    def field_of(self, problem: str) -> str:
        """Return the field with which a prompt's problem begins, by default `content`."""
        found = _SUBJECT.match(problem.removeprefix(f"{self.subject(0)}: "))
        return found[1] if found and found[1] in type(self).model_fields else self.content

    @property
    def scores_prompts(self) -> bool:
        """True if the prompts' own log-probabilities are requested."""
        return False

    @property
    def echoes(self) -> bool:
        """True if a text begins with its prompt."""
        return False

    @property
    def includes_usage(self) -> bool:
        """True if a stream ends with the usage."""
        return bool((self.stream_options or {}).get("include_usage"))

    @property
    def length(self) -> int | None:
        """The maximum number of tokens of a text; None means as many as the model allows."""
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """Number of tokens reported with each chosen one; with None, not even that is reported."""
        return self.logprobs

    @property
    def params(self) -> SamplingParams:
        """The sampling parameters of each prompt."""
        given = self.given | {"max_tokens": self.length}
        if "logprobs" in given:
            given["logprobs"] = self.num_logprobs
        return SamplingParams(**given)


class CompletionRequest(TextRequest):
    """A body of /v1/completions; null counts as absent.

    Sampling fields are those of SamplingParams with lower limits. Unknown fields are refused rather
    than silently ignored.
    """

    model_config = ConfigDict(title="CompletionRequest")
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **TextRequest.unsupported,
        "suffix": ("", *ASKS_FOR_NOTHING),
    }

    prompt: Annotated[Any, WithJsonSchema(_PROMPT)] = Field(description=_FORMS)
    max_tokens: int | None = Field(
        default=16,
        ge=0,
        description="an integer from 1; 0 with echo and logprobs",
    )
    best_of: int | None = Field(default=None, ge=1, description="as many as n, or left out")
    echo: bool = Field(default=False, description="true: the prompt's text comes first")

    @override
    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        yield from self._scoring_problems()
        yield from self._prompt_problems()
        if self.best_of not in (None, self.n):
            yield (
                f"`best_of` is {self.best_of}; allowed: n, which is {self.n}: there is no choice "
                "among more completions than are returned"
            )

    def _scoring_problems(self) -> Iterator[str]:
        if not self.scores_prompts:
            if self.max_tokens == 0:
                yield "`max_tokens` is 0; allowed: from 1, or 0 with echo and logprobs"
            return
        if self.max_tokens not in (0, 1):
            yield (
                f"`max_tokens` is {self.max_tokens}; allowed: 0 or 1 with echo and logprobs, which "
                "score the prompt; for more tokens leave one of these out"
            )
        if self.n > 1 or self.stream:
            yield "`echo` with logprobs scores the prompt; leave out n and stream"

    def _prompt_problems(self) -> Iterator[str]:
        prompt = self.prompt
        if isinstance(prompt, str):
            return
        kinds = {type(one) for one in prompt} if isinstance(prompt, list) else set()
        if len(kinds) != 1 or not kinds <= {str, int, list}:
            yield f"`prompt` is neither a text nor a list of one kind; allowed: {_FORMS}"
        elif kinds != {int} and len(prompt) > MAX_PROMPTS:
            yield f"`prompt` is {len(prompt)} prompts; allowed: {MAX_PROMPTS}; send fewer"

    @property
    @override
    def prompts(self) -> list[str | list[int]]:
        """One entry per prompt."""
        if isinstance(self.prompt, str) or isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)

    @property
    @override
    def scores_prompts(self) -> bool:
        """True if the prompts' own log-probabilities are requested."""
        return self.echo and self.logprobs is not None

    @property
    @override
    def echoes(self) -> bool:
        return self.echo
