"""Request: one prompt and its parameters, checked completely before any work starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...engines.errors import UsageError, shown
from ...engines.manifest import ModelSpec
from ..tokens.sampling import MAX_LOGPROBS, SamplingParams
from ..tokens.tokenizer import Tokenizer
from .prompts import Prompt, Prompts, as_prompt_list, checked_token_ids, prompt_text


@dataclass(frozen=True)
class Request:
    """One prompt and its sampling parameters; ``max_tokens`` is resolved and never None.

    ``client`` names who asks: clients take turns, and may have prefix caches of their own.
    """

    index: int  # position in the call
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    max_tokens: int
    client: str = ""


def make_requests(
    prompts: Prompts,
    sampling_params: SamplingParams | Iterable[SamplingParams] | None,
    model: ModelSpec,
    tokenizer: Tokenizer | None,
) -> list[Request]:
    """Pair prompts with parameters, tokenize and check them.

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
) -> Request:
    """Tokenize and check one prompt; ``subject`` names it in the problems of a UsageError."""
    problems, token_ids = checked_token_ids(prompt, subject, model, tokenizer)
    beyond = params.vocabulary_problems(model.vocab_size, model.eos_token_id)
    problems += [f"{subject}: {text}" for text in beyond]
    if params.stop and tokenizer is None:
        problems.append(f"{subject}: stop strings need a tokenizer; use stop_token_ids")
    room = model.max_seq_len - len(token_ids)
    max_tokens = params.max_tokens if params.max_tokens is not None else room
    if not problems and (room < 1 or max_tokens > room):
        problems.append(
            f"{subject} has {len(token_ids)} tokens and max_tokens is {shown(params.max_tokens)}; "
            f"the bundle holds {model.max_seq_len} positions; "
            "shorten the prompt or lower max_tokens"
        )
    num_logprobs = params.n * max_tokens * (params.logprobs or 0)
    if not problems and num_logprobs > MAX_LOGPROBS:
        problems.append(
            f"{subject}: n {params.n}, max_tokens {max_tokens} and logprobs {params.logprobs} are "
            f"{num_logprobs:,} log-probabilities; allowed: {MAX_LOGPROBS:,}; lower one of them"
        )
    if problems:
        raise UsageError("generate", *problems)
    return Request(index, prompt_text(prompt), token_ids, params, max_tokens, client)


def _as_params_list(
    sampling_params: SamplingParams | Iterable[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    if sampling_params is None:
        return [SamplingParams()] * count
    if isinstance(sampling_params, SamplingParams):
        return [sampling_params] * count
    if isinstance(sampling_params, str | Mapping) or not isinstance(sampling_params, Iterable):
        raise _no_params("sampling_params", sampling_params)
    params_list = list(sampling_params)
    for place, params in enumerate(params_list):
        if not isinstance(params, SamplingParams):
            raise _no_params(f"sampling_params[{place}]", params)
    if len(params_list) != count:
        raise UsageError(
            "sampling_params",
            f"there are {len(params_list)} for {count} prompts; give one, or one for each prompt",
        )
    return params_list


def _no_params(subject: str, value: object) -> UsageError:
    remedy = "SamplingParams(**…) makes one of it" if isinstance(value, Mapping) else "or None"
    return UsageError(
        subject, f"is {shown(value)}; allowed: a SamplingParams, or a list of such; {remedy}"
    )
