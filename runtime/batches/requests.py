"""Requests: what a caller asks for, checked whole before any work starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...engines.errors import UsageError
from ...engines.manifest import ModelSpec
from ..tokens.sampling import SamplingParams
from ..tokens.tokenizer import Tokenizer

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class Request:
    """One prompt and how to continue it. ``max_tokens`` is resolved: never None."""

    index: int  # position in the call
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    max_tokens: int


def make_requests(
    prompts: Prompt | Sequence[Prompt],
    sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    model: ModelSpec,
    tokenizer: Tokenizer | None,
) -> list[Request]:
    """Pair prompts with parameters, tokenize and check them.

    Raises UsageError, with the problems of all prompts, for an empty batch or prompt, an id
    outside the vocabulary, a prompt that leaves no room for ``max_tokens``, or a text prompt
    where the bundle has no tokenizer.
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
) -> Request:
    """Tokenize and check one prompt; ``subject`` names it in the problems of a UsageError."""
    problems, token_ids = checked_token_ids(prompt, subject, model, tokenizer)
    problems += [f"{subject}: {text}" for text in params.vocabulary_problems(model.vocab_size)]
    if params.stop and tokenizer is None:
        problems.append(f"{subject}: stop strings need a tokenizer; use stop_token_ids")
    room = model.max_seq_len - len(token_ids)
    max_tokens = params.max_tokens if params.max_tokens is not None else room
    if not problems and (room < 1 or max_tokens > room):
        problems.append(
            f"{subject} has {len(token_ids)} tokens and max_tokens is {params.max_tokens}; the "
            f"bundle holds {model.max_seq_len} positions; shorten the prompt or lower max_tokens"
        )
    if problems:
        raise UsageError("generate", *problems)
    text = prompt if isinstance(prompt, str) else None
    return Request(index, text, token_ids, params, max_tokens)


def as_prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return the prompts of a call as a list; one text alone is a list of one."""
    if isinstance(prompts, str):
        return [prompts]
    prompt_list: list[Prompt] = list(prompts)  # type: ignore[arg-type]  # ints: refused below
    if not prompt_list:
        raise UsageError("prompts", "there are none; give at least one prompt")
    if any(isinstance(prompt, int) for prompt in prompt_list):
        raise UsageError(
            "prompts", "is a flat list of token ids; allowed: a list of prompts, e.g. [[2, 5, 7]]"
        )
    return prompt_list


def checked_token_ids(
    prompt: Prompt,
    subject: str,
    model: ModelSpec,
    tokenizer: Tokenizer | None,
    *,
    is_continuation: bool = False,
) -> tuple[list[str], tuple[int, ...]]:
    """Return the problems of a prompt, if any, and its token ids.

    A text is read with the tokenizer's prompt template and special tokens, unless it is a
    continuation; token ids are as they are.
    """
    if isinstance(prompt, str):
        if tokenizer is None:
            return [f"{subject} is text, but the bundle has no tokenizer; give token ids"], ()
        if is_continuation:
            token_ids = tuple(tokenizer.encode(prompt, add_special_tokens=False))
        else:
            token_ids = tuple(tokenizer.encode_prompt(prompt))
    else:
        token_ids = tuple(prompt)
    if not token_ids:
        return [f"{subject} has no tokens; give at least one"], ()
    for position, token_id in enumerate(token_ids):
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            return [f"{subject} has {token_id!r} at {position}; allowed: integers"], ()
        if not 0 <= token_id < model.vocab_size:
            return [
                f"{subject} has token id {token_id} at {position}; "
                f"allowed: 0 to {model.vocab_size - 1}"
            ], ()
    return [], token_ids


def _as_params_list(
    sampling_params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    if sampling_params is None:
        return [SamplingParams()] * count
    if isinstance(sampling_params, SamplingParams):
        return [sampling_params] * count
    params_list = list(sampling_params)
    if len(params_list) != count:
        raise UsageError(
            "sampling_params",
            f"there are {len(params_list)} for {count} prompts; give one, or one for each prompt",
        )
    return params_list
