"""Requests to send: drawn from a distribution of lengths, or read from lines of JSON."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bench.load.lengths import Lengths
from skipdec.engines.errors import UsageError

_FIRST_TOKEN = 4  # those before it are special ones of OPT's


@dataclass(frozen=True)
class LoadRequest:
    """One request, greedy, whose text ends at max_tokens and nowhere before."""

    prompt: str | tuple[int, ...]
    max_tokens: int
    schedule: str | None = None  # None: the server's
    leave_after: int | None = None  # tokens after which the client goes; 0: when it has sent it


class Line(BaseModel):
    """One line of a file of requests."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prompt: str | list[int] = Field(min_length=1)
    max_tokens: int = Field(ge=1)
    schedule: str | None = None


def drawn(
    lengths: Callable[[random.Random], Lengths],
    *,
    seed: int,
    vocab_size: int,
    schedules: Sequence[str | None] = (None,),
) -> Iterator[LoadRequest]:
    """Requests without end, the same for the same seed: prompts are ids below ``vocab_size``.

    Each asks for one of ``schedules``; None: the server's.
    """
    draw = random.Random(seed)
    while True:
        one = lengths(draw)
        prompt = tuple(draw.randrange(_FIRST_TOKEN, vocab_size) for _ in range(one.prompt))
        yield LoadRequest(prompt, one.text, draw.choice(schedules))


def read(path: Path, schedule: str | None = None) -> Iterator[LoadRequest]:
    """The requests of a file, again and again; ``schedule``: of lines that name none.

    A line: ``{"prompt": "Once", "max_tokens": 32}``; ``prompt`` may be token ids, ``schedule`` may
    be given. Raises UsageError for one that is not allowed, before any is sent.
    """
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            one = Line.model_validate_json(line)
        except ValidationError as error:
            problem = error.errors()[0]
            place = ".".join(str(part) for part in problem["loc"])
            raise UsageError(f"{path}, line {number}", f"{place} {problem['msg']}") from None
        prompt = one.prompt if isinstance(one.prompt, str) else tuple(one.prompt)
        found.append(LoadRequest(prompt, one.max_tokens, one.schedule or schedule))
    if not found:
        raise UsageError(str(path), "holds no request; a line is {'prompt': …, 'max_tokens': …}")
    yield from cycle(found)


def impatient(requests: Iterator[LoadRequest], share: float, seed: int) -> Iterator[LoadRequest]:
    """Of all clients a ``share`` goes at a random token before its text's end."""
    draw = random.Random(seed)
    for request in requests:
        leaves = draw.random() < share
        yield (
            replace(request, leave_after=draw.randrange(request.max_tokens)) if leaves else request
        )
