"""Requests: the forms of prompts, and requests to generate or score, checked before work starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NotRequired, SupportsIndex, TypedDict, cast, get_args

from ...engines.checking import plain
from ...engines.errors import CapacityError, UsageError, counted, shown
from ...engines.manifest import ModelSpec
from ..drafting.resolver import wants_drafts
from ..kv.plans import SlotMemory
from ..schedule import ExitSchedule
from ..schedule.request_schedules import ScheduleResolver
from ..tokens.chat import SpecialTokens
from ..tokens.sampling import MAX_LOGPROBS, SamplingParams
from ..tokens.tokenizer import Tokenizer

MAX_PROMPTS = 2**20  # of one call
_FORMS = 'a text, token ids, {"prompt": text}, {"prompt_token_ids": ids} or {"messages": [...]}'


class TextPrompt(TypedDict):
    """A text in vLLM's form."""

    prompt: str


class TokensPrompt(TypedDict):
    """Token ids in vLLM's form."""

    prompt_token_ids: Iterable[SupportsIndex]


Messages = Iterable[Mapping[str, Any]]
"""The messages of a chat: ``{"role": "user", "content": "Hello"}``, see `checked_messages`."""


class MessagesPrompt(TypedDict):
    """The messages of a chat, each with ``role`` and ``content``; see `checked_messages`.

    All other fields are optional. ``special_tokens``: if a message spells one, "escape" reads it as
    ordinary text and "allow" as that token. ``chat_template_kwargs``: variables of the template.
    With ``continue_final_message`` the last message is the beginning of the answer.
    """

    messages: Messages
    special_tokens: NotRequired[SpecialTokens]
    chat_template_kwargs: NotRequired[Mapping[str, Any] | None]
    continue_final_message: NotRequired[bool]


Prompt = str | Iterable[SupportsIndex] | TextPrompt | TokensPrompt | MessagesPrompt
"""Token ids are integers, or an array of numpy or torch: int, [S]."""
Prompts = str | TextPrompt | TokensPrompt | MessagesPrompt | Iterable[Prompt]
"""A list of prompts, or a single one, which is no flat list of token ids."""


def as_prompt_list(prompts: Prompts) -> list[Prompt]:
    """Return the prompts of a call as a list; a single text or mapping becomes a list of one.

    >>> as_prompt_list("Hello"), as_prompt_list([{"prompt": "Hello"}, [5, 7]])
    (['Hello'], [{'prompt': 'Hello'}, [5, 7]])

    Raises UsageError for anything else, for example a flat list of token ids.
    """
    given: Any = plain(prompts)
    if isinstance(given, str) or _is_mapping(given):
        return [given]
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise UsageError("prompts", f"is {shown(given)}; allowed: {_FORMS}, or a list of such")
    prompt_list = _bounded(given)
    if any(isinstance(plain(prompt), int) for prompt in prompt_list):
        raise UsageError(
            "prompts", "is a flat list of token ids; allowed: a list of prompts, e.g. [[2, 5, 7]]"
        )
    return prompt_list


def chat_prompts(messages: Messages | Sequence[Messages], **options: Any) -> list[Prompt]:  # noqa: ANN401
    """Return one chat, or each of several, as a prompt with the ``options`` of MessagesPrompt."""
    given: Any = _bounded(messages) if isinstance(messages, Iterator) else messages
    is_several = isinstance(given, Sequence) and given and isinstance(given[0], list | tuple)
    chats = given if is_several else [given]
    return [cast("MessagesPrompt", {"messages": one, **options}) for one in chats]


def _bounded(prompts: Iterable[Any]) -> list[Any]:
    """Return the prompts of a call as a list. Raises UsageError for too many."""
    found = list(islice(prompts, MAX_PROMPTS + 1))
    if len(found) > MAX_PROMPTS:
        raise UsageError("prompts", f"are more than {MAX_PROMPTS:,}; give fewer in one call")
    return found


def read_prompt(
    prompt: Prompt,
    subject: str,
    model: ModelSpec,
    tokenizer: Tokenizer | None,
    *,
    is_continuation: bool = False,
) -> tuple[str | None, tuple[int, ...]]:
    """Return the text of a prompt, None for token ids, and its token ids.

    Messages are rendered by the chat template of the bundle. A text is put into the tokenizer's
    prompt template and gets its special tokens, unless it is a continuation; token ids are used as
    given. A text that must be too long for the model is refused without tokenizing it, which would
    take half a minute for 10 MB. Raises UsageError, which names ``subject``.
    """
    given: Any = plain(prompt)
    if _is_mapping(given):
        if isinstance(given, Mapping) and "messages" in given:
            return _rendered(given, subject, model, tokenizer)
        if tuple(given.keys()) not in (("prompt",), ("prompt_token_ids",)):
            keys = ", ".join(map(str, islice(given.keys(), 10))) or "none"
            raise _refusal(f"{subject} is a mapping with the keys {keys:.200}; allowed: {_FORMS}")
        (key,) = given.keys()
        given = plain(given[key])
        if isinstance(given, str) != (key == "prompt"):
            raise _refusal(f"{subject} has {shown(given)} under {key!r}; allowed: {_FORMS}")
    if not isinstance(given, str):
        return None, _checked_ids(given, subject, model)
    if tokenizer is None:
        raise _refusal(f"{subject} is text, but the bundle has no tokenizer; give token ids")
    if (least := tokenizer.least_tokens(given)) > model.max_seq_len:
        raise _too_long(subject, f"at least {least} tokens", model)
    try:
        if is_continuation:
            ids = tokenizer.encode(given, add_special_tokens=False)
        else:
            ids = tokenizer.encode_prompt(given)
    except UsageError as error:
        raise _refusal(*(f"{subject} {problem}" for problem in error.problems)) from error
    return given, _checked_ids(ids, subject, model)


def _rendered(
    prompt: Mapping[str, Any], subject: str, model: ModelSpec, tokenizer: Tokenizer | None
) -> tuple[str, tuple[int, ...]]:
    """Return the text and the token ids of messages. Raises UsageError."""
    choice = prompt.get("special_tokens", "escape")
    continues = prompt.get("continue_final_message", False)
    if unknown := prompt.keys() - MessagesPrompt.__annotations__.keys():
        problem = f"messages are given with {', '.join(sorted(unknown)):.200}"
    elif choice not in get_args(SpecialTokens):
        problem = f"special_tokens is {shown(choice)}; allowed: escape or allow"
    elif not isinstance(continues, bool):
        problem = f"continue_final_message is {shown(continues)}; allowed: true or false"
    elif tokenizer is None or tokenizer.chat is None:
        problem = (
            "messages need a chat template, and the bundle has none: send a prompt instead, or put "
            "chat_template.jinja into the checkpoint and export it again"
        )
    else:
        try:
            made = tokenizer.chat.encode(
                prompt["messages"],
                special_tokens=choice,
                continue_final_message=continues,
                chat_template_kwargs=prompt.get("chat_template_kwargs"),
                max_tokens=model.max_seq_len,
            )
        except UsageError as error:
            problems = (f"{subject}: {error.subject} {problem}" for problem in error.problems)
            raise _refusal(*problems) from error
        return made.text, _checked_ids(made.token_ids, subject, model)
    raise _refusal(f"{subject}: {problem}")


def _checked_ids(given: Any, subject: str, model: ModelSpec) -> tuple[int, ...]:  # noqa: ANN401
    """Return token ids. Raises UsageError for anything else."""
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise _refusal(f"{subject} is {shown(given)}; allowed: {_FORMS}")
    token_ids = tuple(map(plain, islice(given, model.max_seq_len + 1)))
    if not token_ids:
        raise _refusal(f"{subject} has no tokens; give at least one")
    for position, token_id in enumerate(token_ids):
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise _refusal(f"{subject} has {shown(token_id)} at {position}; allowed: integers")
        if not 0 <= token_id < model.vocab_size:
            raise _refusal(
                f"{subject} has token id {shown(token_id)} at {position}; "
                f"allowed: 0 to {model.vocab_size - 1}"
            )
    if len(token_ids) > model.max_seq_len:
        count = len(given) if isinstance(given, Sized) else f"more than {model.max_seq_len}"
        raise _too_long(subject, f"{count} tokens", model)
    return token_ids


def _refusal(*problems: str) -> UsageError:
    return UsageError("prompt", *problems)


def _is_mapping(value: object) -> bool:
    """Return whether iteration yields keys instead of prompts, as for a pandas DataFrame."""
    return isinstance(value, Mapping) or hasattr(value, "keys")


def _too_long(subject: str, length: str, model: ModelSpec) -> UsageError:
    return _refusal(
        f"{subject} has {length}; the bundle holds {model.max_seq_len} positions; shorten it"
    )


@dataclass(frozen=True)
class Request:
    """One prompt and its sampling parameters; ``max_tokens`` is resolved and never None.

    ``client`` names its sender: clients take turns, and may have prefix caches of their own.
    With ``drafts`` False its rows run without drafts, even if the batch drafts.
    """

    index: int  # position in the call
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    max_tokens: int
    client: str = ""
    drafts: bool = True

    def require_possible(self, memory: SlotMemory, schedule: ExitSchedule) -> None:
        """Raise CapacityError if the request could not run even alone in ``memory``."""
        self.require_rows(memory.limits.max_rows)
        self.require_memory(memory, schedule, self.params.n, "prompt")

    def require_rows(self, max_rows: int) -> None:
        """Raise CapacityError for more completions than can run at once."""
        if self.params.n > max_rows:
            raise CapacityError(
                "n",
                f"is {self.params.n}; the engine runs up to {counted(max_rows, 'row')} at once; "
                "lower n or raise max_batch_size",
            )

    def require_memory(
        self, memory: SlotMemory, schedule: ExitSchedule, rows: int, subject: str
    ) -> None:
        """Raise CapacityError if ``rows`` of the completions don't fit even alone."""
        tokens, limits = len(self.prompt_token_ids), memory.limits
        size = f"{counted(tokens, 'token')} and max_tokens {self.max_tokens}"
        positions = tokens + self.max_tokens
        if positions > limits.max_positions:
            remedy = "or shorten the prompt"
            if self.max_tokens > 1:
                remedy = "shorten the prompt or lower max_tokens"
            raise CapacityError(
                subject,
                f"{size} are {positions:,} positions; max_model_len allows "
                f"{limits.max_positions:,}; raise it, {remedy}",
            )
        prompt = memory.prompt_row(self.prompt_token_ids, schedule, self.max_tokens, range(rows))
        needed = memory.alone(prompt, in_chunks=tokens > limits.chunk_tokens)
        if needed > limits.kv_bytes:
            raise CapacityError(
                subject,
                f"{size} need {needed:,} bytes of KV cache; kv_memory allows "
                f"{limits.kv_bytes:,}; raise it, shorten the prompt, lower max_tokens or use a "
                "schedule with fewer layers",
            )


def make_requests(
    prompts: Prompts,
    sampling_params: SamplingParams | Iterable[SamplingParams] | None,
    model: ModelSpec,
    tokenizer: Tokenizer | None,
) -> list[Request]:
    """Pair prompts with parameters; tokenize and check them.

    Raises UsageError, with the problems of all prompts, for an empty prompt, an id outside the
    vocabulary, a prompt that leaves no room for ``max_tokens``, or a text prompt where the bundle
    has no tokenizer.
    """
    prompt_list = as_prompt_list(prompts)
    params_list = _as_params_list(sampling_params, len(prompt_list))
    requests = []
    problems: list[str] = []
    for index, (prompt, params) in enumerate(zip(prompt_list, params_list, strict=True)):
        try:
            subject = f"prompt {index}"
            requests.append(make_request(index, prompt, params, model, tokenizer, subject))
        except UsageError as error:
            problems += error.problems
    if problems:
        raise UsageError("generate", *problems)
    return requests


def make_request(
    index: int,
    prompt: Prompt,
    params: SamplingParams,
    model: ModelSpec,
    tokenizer: Tokenizer | None,
    subject: str,
    client: str = "",
    max_model_len: int | None = None,
) -> Request:
    """Tokenize and check one prompt; ``subject`` names it in the problems of a UsageError.

    The bundle's defaults apply to parameters that were not given, see `SamplingParams`. Without
    max_tokens a text may be as long as the model allows, but prompt and text together no longer
    than ``max_model_len``, so that the request does not reserve more than others may.
    """
    problems: list[str] = []
    text: str | None = None
    token_ids: tuple[int, ...] = ()
    try:
        text, token_ids = read_prompt(prompt, subject, model, tokenizer)
    except UsageError as error:
        problems += error.problems
    is_chat = isinstance(prompt, Mapping) and "messages" in prompt
    try:
        params = params.resolved(model.sampling_defaults.given, is_chat=is_chat)
    except UsageError as error:  # the bundle's defaults contradict the given parameters
        problems += [f"{subject}: {problem}" for problem in error.problems]
    beyond = params.vocabulary_problems(model.vocab_size, model.end_token_ids)
    problems += [f"{subject}: {problem}" for problem in beyond]
    if params.stop and tokenizer is None:
        problems.append(f"{subject}: stop strings need a tokenizer; use stop_token_ids")
    room = model.max_seq_len - len(token_ids)
    most = room if max_model_len is None else min(room, max_model_len - len(token_ids))
    max_tokens = params.max_tokens if params.max_tokens is not None else max(1, most)
    if not problems and max_tokens > room:
        seen, remedy = "leaves no room for a completion", "shorten the prompt"
        if room > 0:
            seen, remedy = f"max_tokens is {max_tokens}", f"{remedy} or lower max_tokens"
        limit = f"the bundle holds {model.max_seq_len}"
        if most < room:
            limit = f"max_model_len allows {max_model_len}"
        problems.append(
            f"{subject} has {len(token_ids)} tokens and {seen}; {limit} positions; {remedy}"
        )
    per_token = 0 if params.logprobs is None else params.logprobs + 1  # including the chosen token
    num_logprobs = params.n * max_tokens * per_token
    if not problems and num_logprobs > MAX_LOGPROBS:
        problems.append(
            f"{subject}: n {params.n}, max_tokens {max_tokens} and logprobs {params.logprobs} are "
            f"{num_logprobs:,} log-probabilities; allowed: {MAX_LOGPROBS:,}; lower one of them"
        )
    if problems:
        raise UsageError("generate", *problems)
    return Request(index, text, token_ids, params, max_tokens, client)


def prepare_request(
    prompt: Prompt,
    params: SamplingParams | None,
    schedule: str | ExitSchedule | None,
    model: ModelSpec,
    tokenizer: Tokenizer | None,
    schedules: ScheduleResolver,
    *,
    client: str = "",
    subject: str = "prompt",
    draft: str | None = None,
    max_model_len: int | None = None,
) -> tuple[Request, ExitSchedule]:
    """Make and check one request and its schedule; raises as `make_request`, and ScheduleError.

    ``draft``: as in `wants_drafts`.
    """
    drafts = wants_drafts(draft)
    (given,) = _as_params_list(params, 1)
    request = make_request(0, prompt, given, model, tokenizer, subject, client, max_model_len)
    resolved = schedules.resolve(schedule, request.max_tokens)
    return replace(request, drafts=drafts), resolved


def _as_params_list(
    sampling_params: SamplingParams | Iterable[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    if sampling_params is None:
        return [SamplingParams()] * count
    if isinstance(sampling_params, SamplingParams):
        return [sampling_params] * count
    if isinstance(sampling_params, str | Mapping) or not isinstance(sampling_params, Iterable):
        raise _no_params("sampling_params", sampling_params)
    params_list = list(islice(sampling_params, count + 1))  # of an iterator that may never end
    for place, params in enumerate(params_list):
        if not isinstance(params, SamplingParams):
            raise _no_params(f"sampling_params[{place}]", params)
    if len(params_list) != count:
        found = len(params_list) if len(params_list) < count else f"more than {count}"
        raise UsageError(
            "sampling_params",
            f"there are {found} for {counted(count, 'prompt')}; give one, or one for each prompt",
        )
    return params_list


def _no_params(subject: str, value: object) -> UsageError:
    remedy = "SamplingParams(**…) makes one of it" if isinstance(value, Mapping) else "or None"
    return UsageError(
        subject, f"is {shown(value)}; allowed: a SamplingParams, or a list of such; {remedy}"
    )
