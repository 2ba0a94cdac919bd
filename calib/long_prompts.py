"""What becomes of an example that is longer than the model: refused, left out, or prompt cut."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from typing import Literal

LongPrompts = Literal["refuse", "drop", "cut"]


def cut_prompt(
    prompt: str, template: str, max_tokens: int, count_tokens: Callable[[str], int]
) -> str | None:
    """``prompt`` with words left out at the end of what ``template`` wraps, so that it fits.

    The template's own text stays, as a summary's "TL;DR:" must. None where no word fits.

    >>> cut_prompt("one two three\\nTL;DR:", "{prompt}\\nTL;DR:", 3, lambda text: len(text.split()))
    'one two\\nTL;DR:'
    """
    before, after = template.split("{prompt}")
    text = prompt[len(before) : len(prompt) - len(after)]
    ends = [word.end() for word in re.finditer(r"\S+", text)]

    def cut_at(end: int) -> str:
        return before + text[:end] + after

    kept = bisect_right(ends, max_tokens, key=lambda end: count_tokens(cut_at(end)))
    return cut_at(ends[kept - 1]) if kept else None
