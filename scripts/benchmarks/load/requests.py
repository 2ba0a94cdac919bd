"""Requests to send: drawn from a distribution of lengths, or read from JSON lines."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.load.lengths import Lengths
from skipdec import SamplingParams
from skipdec.engines.documents import open_regular
from skipdec.engines.errors import UsageError
from skipdec.runtime.requests.records import BadRecord, Record, read_records, split_lines

_FIRST_TOKEN = 4  # OPT's special tokens come before it
_GREEDY: Mapping[str, Any] = {"temperature": 0.0, "ignore_eos": True}
_DRAWING = frozenset(  # Sampling fields that a line may have besides max_tokens.
    {"temperature", "top_k", "top_p", "min_p", "seed"}
    | {"repetition_penalty", "presence_penalty", "frequency_penalty"}
)
_LINE = ["id", "prompt", "prompt_token_ids", "schedule", "max_tokens"]


@dataclass(frozen=True)
class LoadRequest:
    """One request whose text ends exactly at max_tokens."""

    prompt: str | tuple[int, ...]
    max_tokens: int
    schedule: str | None = None  # None: the server's
    leave_after: int | None = None  # tokens after which the client leaves; 0: right after sending
    sampling: Mapping[str, Any] = field(default_factory=lambda: _GREEDY)  # fields of SamplingParams


def drawn(
    lengths: Callable[[random.Random], Lengths],
    *,
    seed: int,
    vocab_size: int,
    schedules: Sequence[str | None] = (None,),
) -> Iterator[LoadRequest]:
    """Yield endless requests, the same for the same seed, with prompt ids below ``vocab_size``.

    Each uses one of ``schedules``; None is the server's.
    """
    draw = random.Random(seed)
    while True:
        one = lengths(draw)
        prompt = tuple(draw.randrange(_FIRST_TOKEN, vocab_size) for _ in range(one.prompt))
        yield LoadRequest(prompt, one.text, draw.choice(schedules))


def read(path: Path, schedule: str | None = None) -> Iterator[LoadRequest]:
    """Yield the requests of a file again and again; ``schedule`` is for lines without one.

    Lines are those of ``skipdec generate``: ``{"prompt": "Once", "max_tokens": 32}``. Without other
    sampling fields a text is greedy. A field that would end it before max_tokens is refused. Raises
    UsageError for an invalid line before any is sent.
    """
    defaults = SamplingParams(**_GREEDY)
    try:
        with open_regular(path) as file:
            records = list(read_records(split_lines(file), defaults))
    except OSError as error:
        raise UsageError(str(path), f"can't be read ({error.strerror or error})") from error
    if not records:
        raise UsageError(str(path), 'holds no request; a line is {"prompt": …, "max_tokens": …}')
    found = []
    for record in records:
        subject = f"{path}, line {record.line}"
        if isinstance(record, BadRecord):
            raise UsageError(subject, record.error)
        if problems := list(_problems(record)):
            raise UsageError(subject, *problems)
        found.append(_request(record, schedule))
    yield from cycle(found)


def _request(record: Record, schedule: str | None) -> LoadRequest:
    prompt: Any = record.prompt
    sampling = {name: getattr(record.params, name) for name in _DRAWING & record.fields.keys()}
    assert record.params.max_tokens is not None
    return LoadRequest(
        prompt if isinstance(prompt, str) else tuple(prompt),
        record.params.max_tokens,
        record.schedule or schedule,
        sampling={**_GREEDY, **sampling},
    )


def _problems(record: Record) -> Iterator[str]:
    """Name what a load can't send: a missing prompt, a text of unknown length, several texts."""
    prompt: Any = record.prompt
    if not prompt or (isinstance(prompt, list) and not all(type(one) is int for one in prompt)):
        yield f"prompt is {prompt!r:.80}; allowed: a text, or token ids"
    if others := sorted(record.fields.keys() - _DRAWING - set(_LINE)):
        allowed = ", ".join([*_LINE, *sorted(_DRAWING)])
        yield f"{', '.join(others)} can't be part of a load; allowed: {allowed}"
    if record.params.max_tokens is None:
        yield "max_tokens is null; allowed: an integer from 1: all texts of a load end there"


def impatient(requests: Iterator[LoadRequest], share: float, seed: int) -> Iterator[LoadRequest]:
    """Let a ``share`` of clients leave at a random token before their text's end."""
    draw = random.Random(seed)
    for request in requests:
        leaves = draw.random() < share
        yield (
            replace(request, leave_after=draw.randrange(request.max_tokens)) if leaves else request
        )
