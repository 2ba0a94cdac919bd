"""Prompts: the forms that callers may use, and the token ids of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from itertools import islice
from typing import Any, SupportsIndex, TypedDict

from ...engines.checking import plain
from ...engines.errors import UsageError, shown
from ...engines.manifest import ModelSpec
from ..tokens.tokenizer import Tokenizer

MAX_PROMPTS = 2**20  # of one call
_FORMS = 'a text, token ids, {"prompt": text} or {"prompt_token_ids": ids}'


class TextPrompt(TypedDict):
    """A text in vLLM's form."""

    prompt: str


class TokensPrompt(TypedDict):
    """Token ids in vLLM's form."""

    prompt_token_ids: Iterable[SupportsIndex]


Prompt = str | Iterable[SupportsIndex] | TextPrompt | TokensPrompt
"""Token ids are integers, or an array of numpy or torch: int, [S]."""
Prompts = Prompt | Iterable[Prompt]


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
    prompt_list = list(islice(given, MAX_PROMPTS + 1))
    if len(prompt_list) > MAX_PROMPTS:
        raise UsageError("prompts", f"are more than {MAX_PROMPTS:,}; give fewer in one call")
    if any(isinstance(plain(prompt), int) for prompt in prompt_list):
        raise UsageError(
            "prompts", "is a flat list of token ids; allowed: a list of prompts, e.g. [[2, 5, 7]]"
        )
    return prompt_list


def prompt_text(prompt: Prompt) -> str | None:
    """Return a text prompt's text, or None for token ids."""
    text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
    return text if isinstance(text, str) else None


def checked_token_ids(
    prompt: Prompt,
    subject: str,
    model: ModelSpec,
    tokenizer: Tokenizer | None,
    *,
    is_continuation: bool = False,
) -> tuple[list[str], tuple[int, ...]]:
    """Return the problems of a prompt, if any, and its token ids.

    A text is put into the tokenizer's prompt template and gets its special tokens, unless it is a
    continuation; token ids are used as given. A text that is too long for the model whatever its
    tokens are is refused without tokenizing it, which would take half a minute for 10 MB.
    """
    ids: Any = plain(prompt)
    if _is_mapping(ids):
        if tuple(ids.keys()) not in (("prompt",), ("prompt_token_ids",)):
            keys = ", ".join(map(str, islice(ids.keys(), 10))) or "none"
            return [f"{subject} is a mapping with the keys {keys:.200}; allowed: {_FORMS}"], ()
        (key,) = ids.keys()
        ids = plain(ids[key])
        if isinstance(ids, str) != (key == "prompt"):
            return [f"{subject} has {shown(ids)} under {key!r}; allowed: {_FORMS}"], ()
    if isinstance(ids, str):
        if tokenizer is None:
            return [f"{subject} is text, but the bundle has no tokenizer; give token ids"], ()
        if (least := tokenizer.least_tokens(ids)) > model.max_seq_len:
            return [_too_long(subject, f"at least {least} tokens", model)], ()
        if is_continuation:
            ids = tokenizer.encode(ids, add_special_tokens=False)
        else:
            ids = tokenizer.encode_prompt(ids)
    elif isinstance(ids, bytes) or not isinstance(ids, Iterable):
        return [f"{subject} is {shown(ids)}; allowed: {_FORMS}"], ()
    token_ids = tuple(map(plain, islice(ids, model.max_seq_len + 1)))
    if not token_ids:
        return [f"{subject} has no tokens; give at least one"], ()
    for position, token_id in enumerate(token_ids):
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            return [f"{subject} has {shown(token_id)} at {position}; allowed: integers"], ()
        if not 0 <= token_id < model.vocab_size:
            return [
                f"{subject} has token id {shown(token_id)} at {position}; "
                f"allowed: 0 to {model.vocab_size - 1}"
            ], ()
    if len(token_ids) > model.max_seq_len:
        count = len(ids) if isinstance(ids, Sized) else f"more than {model.max_seq_len}"
        return [_too_long(subject, f"{count} tokens", model)], ()
    return [], token_ids


def _is_mapping(value: object) -> bool:
    """Return whether iteration yields keys instead of prompts, as a table of pandas does."""
    return isinstance(value, Mapping) or hasattr(value, "keys")


def _too_long(subject: str, length: str, model: ModelSpec) -> str:
    return (
        f"{subject} has {length}; the bundle holds {model.max_seq_len} positions; shorten the "
        "prompt"
    )
