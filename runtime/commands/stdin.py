"""Standard input of ``skipdec generate``: lines of JSON, or one prompt."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain
from typing import IO

from ...engines.errors import UsageError
from ..requests.records import json_object, split_lines

_MAX_PROMPT = 16 * 2**20  # bytes


def stdin() -> IO[bytes]:
    """Standard input as bytes. Raises UsageError where it is closed."""
    if sys.stdin is None:
        raise UsageError("stdin", "is closed; name a file or give prompts")
    return sys.stdin.buffer


def prompt_of(content: bytes) -> str:
    """The prompt that a pipe holds: all of it, but for one line feed at its end.

    Raises UsageError for nothing, for text that is not UTF-8 and for more than 16 MiB.
    """
    if len(content) > _MAX_PROMPT:
        raise UsageError("stdin", f"is longer than {_MAX_PROMPT:,} bytes; give lines by --input -")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise UsageError("stdin", f"is not UTF-8 at byte {error.start}") from error
    prompt = text.removesuffix("\n").removesuffix("\r")
    if not prompt:
        raise UsageError("stdin", "is empty; give a prompt, by -p or after the bundle, or --input")
    return prompt


def read_prompt() -> str:
    """All of standard input as one prompt. Raises UsageError as ``prompt_of`` does."""
    return prompt_of(stdin().read(_MAX_PROMPT + 1))


def read_pipe() -> str | Iterator[bytes]:
    """Read a pipe: lines of JSON if the first is an object, else one prompt.

    Raises UsageError where standard input is a terminal, which nobody was asked to type into.
    """
    file = stdin()
    if file.isatty():
        raise UsageError("generate", "give a prompt, by -p or after the bundle, or --input")
    begin: list[bytes] = []
    for line in (lines := split_lines(file)):
        begin.append(line)
        if line.strip():
            break
    if begin and json_object(begin[-1]) is not None:
        return chain(begin, lines)
    return prompt_of(b"".join(begin) + file.read(_MAX_PROMPT + 1))
