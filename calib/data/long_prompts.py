"""What becomes of an example that is longer than the model: refused, left out, or prompt cut."""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import Literal

from ...runtime.tokens.tokenizer import Tokenizer

LongPrompts = Literal["refuse", "drop", "cut"]


def prompt_room(max_length: int, completion: int) -> int:
    """Tokens that a prompt may have beside a completion of so many: at least half of all.

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
    """Token ids of ``prompt``, cut so that ``completion`` more tokens fit into ``max_length``.

    ``num_tokens``: the whole prompt's. None where nothing is to be cut, or no word would fit.
    """
    allowed = prompt_room(max_length, completion)
    if num_tokens <= allowed:
        return None
    shorter = cut_prompt(prompt, template, allowed, tokenizer)
    return None if shorter is None else tuple(tokenizer.encode(shorter))


def cut_prompt(prompt: str, template: str, max_tokens: int, tokenizer: Tokenizer) -> str | None:
    """``prompt`` with words left out at the end of what ``template`` wraps, so that it fits.

    The template's own text stays: of "one two three\\nTLDR", made with "{prompt}\\nTLDR", 3 tokens
    of a word each are "one two\\nTLDR". None where no word fits.
    """
    before, after = template.split("{prompt}")
    text = prompt[len(before) : len(prompt) - len(after)]
    ends = [word.end() for word in re.finditer(r"\S+", text)]

    def cut_at(end: int) -> str:
        return before + text[:end] + after

    kept = bisect_right(ends, max_tokens, key=lambda end: len(tokenizer.encode(cut_at(end))))
    return cut_at(ends[kept - 1]) if kept else None
