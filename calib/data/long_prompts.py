"""Handle examples that exceed the maximum length: refuse them, drop them or cut their prompts."""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import Literal

from ...runtime.tokens.tokenizer import Tokenizer

LongPrompts = Literal["refuse", "drop", "cut"]


def prompt_room(max_length: int, completion: int) -> int:
    """Return the maximum prompt length beside a completion of that length; at least half of all.

    >>> prompt_room(2048, 100), prompt_room(2048, 1500)
    (1948, 1024)
    """
    return max_length - min(completion, max_length // 2)


def cut_to_fit(
    prompt: str,
    template: str,
    tokenizer: Tokenizer,
    *,
    num_tokens: int,
    completion: int,
    max_length: int,
) -> tuple[int, ...] | None:
    """Return the ids of ``prompt``, cut so that ``completion`` more tokens fit ``max_length``.

    ``num_tokens`` is the length of the whole prompt. Returns None if nothing has to be cut or not
    even one word would fit.
    """
    allowed = prompt_room(max_length, completion)
    if num_tokens <= allowed:
        return None
    shorter = cut_prompt(prompt, template, allowed, tokenizer)
    return None if shorter is None else tuple(tokenizer.encode(shorter))


def cut_prompt(prompt: str, template: str, max_tokens: int, tokenizer: Tokenizer) -> str | None:
    """Drop words at the end of the text that ``template`` wraps until ``prompt`` fits.

    The template's own text stays: "one two three\\nTLDR", made with "{prompt}\\nTLDR", cut to 3
    tokens of a word each, becomes "one two\\nTLDR". Returns None if no word fits.
    """
    before, after = template.split("{prompt}")
    text = prompt[len(before) : len(prompt) - len(after)]
    ends = [word.end() for word in re.finditer(r"\S+", text)]

    def cut_at(end: int) -> str:
        return before + text[:end] + after

    kept = bisect_right(ends, max_tokens, key=lambda end: len(tokenizer.encode(cut_at(end))))
    return cut_at(ends[kept - 1]) if kept else None
