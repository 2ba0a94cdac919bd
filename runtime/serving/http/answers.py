"""Results as OpenAI's documents, encoded and sent in pieces that never block the event loop."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

from starlette.responses import Response, StreamingResponse

from ...schedule import ExitSchedule
from ...schedule.plan import LayerRanges
from ...tokens.outputs import CompletionOutput, Drafts, Logprob, RequestOutput, StreamDelta
from ...tokens.tokenizer import Tokenizer

Item = TypeVar("Item")

_TO_ASCII = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
_TO_UTF8 = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

_SLICE_SECONDS = 0.001  # of work between two looks at what else the loop has to do
# Tokens whose entries are made and encoded at once: less than a millisecond.
_BLOCK, _TOP_BLOCK = 16, 2
_WHOLE_BYTES = 1 << 16  # an answer of up to so many is sent at once, with its length


class Turns:
    """Lets an event loop do other work while long work is done in it."""

    def __init__(self) -> None:
        self._begin = perf_counter()

    async def take(self) -> None:
        """Let others have their turn, if this one has lasted long enough."""
        if perf_counter() - self._begin > _SLICE_SECONDS:
            await asyncio.sleep(0)
            self._begin = perf_counter()


@dataclass(frozen=True)
class Blocks:
    """A long array of a document, as short lists that are made while it is encoded; read once."""

    blocks: Iterable[Sequence[Any]]


@dataclass(frozen=True)
class Items:
    """An array whose items are documents that are made while it is encoded; read once."""

    items: Iterable[Any]


def consumed(items: list[Item]) -> Iterator[Item]:
    """Yield the items and empty the list: freeing a hundred thousand objects at once takes long."""
    items.reverse()
    while items:
        yield items.pop()


def encoded(document: Any, *, ascii_only: bool = False) -> Iterator[bytes]:  # noqa: ANN401
    """Yield the JSON of a document in pieces, each of which takes little time to make.

    A document has what JSON has (keys may be numbers, which become texts), Blocks, and Items.
    """
    encode = _TO_ASCII if ascii_only else _TO_UTF8
    match document:
        case dict():
            yield b"{"
            for place, (name, value) in enumerate(document.items()):
                yield f"{',' if place else ''}{encode(str(name))}:".encode()
                yield from encoded(value, ascii_only=ascii_only)
            yield b"}"
        case Items(items):
            yield b"["
            for place, item in enumerate(items):
                if place:
                    yield b","
                yield from encoded(item, ascii_only=ascii_only)
            yield b"]"
        case Blocks(blocks):
            yield b"["
            for place, block in enumerate(filter(None, blocks)):
                yield f"{',' if place else ''}{encode(block)[1:-1]}".encode()
            yield b"]"
        case _:
            yield encode(document).encode()


async def json_answer(document: dict[str, Any]) -> Response:
    """Answer with a document: a short one at once, a long one as it is made."""
    chunks = _chunks(document)
    first = await anext(chunks)
    second = await anext(chunks, None)
    if second is None:
        return Response(first, media_type="application/json")

    async def chained() -> AsyncIterator[bytes]:
        yield first
        yield second
        async for chunk in chunks:
            yield chunk

    return StreamingResponse(chained(), media_type="application/json")


async def _chunks(document: dict[str, Any]) -> AsyncIterator[bytes]:
    turns, chunk = Turns(), bytearray()
    for piece in encoded(document):
        chunk += piece
        if len(chunk) > _WHOLE_BYTES:
            yield bytes(chunk)
            chunk.clear()
        await turns.take()
    if chunk:
        yield bytes(chunk)


class TokenNames(dict[int, str]):
    """Texts of tokens by id, each made once: log-probabilities name the same ones many times."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        super().__init__()
        self.tokenizer = tokenizer

    def __missing__(self, token_id: int) -> str:
        name = self[token_id] = _token_name(token_id, self.tokenizer)
        return name

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes of a token's text, part of a character or not."""
        name = self[token_id]
        if self.tokenizer is not None and name.startswith("bytes:"):
            return self.tokenizer.token_bytes(token_id)
        return name.encode()


class TextOffsets:
    """Counts the characters of a choice's text that precede each of its tokens.

    The tokens of one character have its place. Text that a stop string cut off is counted, because
    a stream sends places before it knows of the cut.
    """

    def __init__(self, names: TokenNames, start: int, *, skip_special_tokens: bool = True) -> None:
        self._decoder = (
            None
            if names.tokenizer is None
            else names.tokenizer.incremental_decoder(skip_special_tokens)
        )
        self._length = start

    def before(self, token_id: int) -> int:
        """Take the next token and return its place."""
        if self._decoder is None:  # there is no text
            return self._length
        place = self._length + self._decoder.num_held
        self._length += len(self._decoder.push(token_id))
        return place


class ShownSchedule:
    """The schedule of a stream as its chunks show it, with the layers of each depth, cached."""

    def __init__(self, schedule: ExitSchedule, text: str) -> None:
        self.text = text
        self._schedule = schedule
        self._ranges: dict[int, LayerRanges] = {}

    def ranges(self, count: int) -> LayerRanges:
        """Return the layers that a token of ``count`` layers ran."""
        if count not in self._ranges:
            self._ranges |= self._schedule.layer_ranges([count])
        return self._ranges[count]


def whole_choice(
    request: RequestOutput,
    output: CompletionOutput,
    index: int,
    prompt: str,
    names: TokenNames,
    offsets: TextOffsets,
) -> dict[str, Any]:
    """Return a completion of ``request`` that has ended; ``prompt`` is echoed before its text."""
    return {
        "index": index,
        "text": prompt + output.text,
        "logprobs": output.logprobs
        and logprobs_document(output.token_ids, output.logprobs, names, offsets),
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
        "schedule": request.schedule,
        "layers_per_token": list(output.layers_per_token),
        "layer_ranges": {
            count: request.layer_ranges[count] for count in sorted(set(output.layers_per_token))
        },
    }


def delta_choice(
    deltas: Sequence[StreamDelta],
    index: int,
    prompt: str,
    schedule: ShownSchedule,
    names: TokenNames,
    offsets: TextOffsets,
    *,
    marks_drafts: bool = False,
) -> dict[str, Any]:
    """Return a completion's news since the last chunk, from which ``offsets`` have counted.

    With ``marks_drafts``, ``drafted`` says of each token whether it was drafted.
    """
    tokens = [token for delta in deltas for token in delta.token_ids]
    logprobs = [entry for delta in deltas for entry in delta.logprobs or ()]
    layers = [delta.layers for delta in deltas for _ in delta.token_ids]
    return {
        "index": index,
        "text": prompt + "".join(delta.text for delta in deltas),
        "logprobs": logprobs_document(tokens, logprobs, names, offsets) if logprobs else None,
        "finish_reason": deltas[-1].finish_reason,
        "stop_reason": deltas[-1].stop_reason,
        "schedule": schedule.text,
        "layers_per_token": layers,
        "layer_ranges": {count: schedule.ranges(count) for count in sorted(set(layers))},
    } | (
        {"drafted": [delta.drafted for delta in deltas for _ in delta.token_ids]}
        if marks_drafts
        else {}
    )


def logprobs_document(
    token_ids: Sequence[int],
    logprobs: Sequence[dict[int, Logprob]],
    names: TokenNames,
    offsets: TextOffsets,
) -> dict[str, Any]:
    """OpenAI's four lists, one entry per token.

    A token without an entry, the first of a prompt, has null.
    """
    return {
        "tokens": Blocks(
            [names[token] for token in block] for block in in_blocks(token_ids, _BLOCK)
        ),
        "token_logprobs": Blocks(
            [
                shown_logprob(entry[token]) if entry else None
                for token, entry in zip(tokens, entries, strict=True)
            ]
            for tokens, entries in zip(
                in_blocks(token_ids, _BLOCK), in_blocks(logprobs, _BLOCK), strict=True
            )
        ),
        "top_logprobs": Blocks(
            [
                {names[token]: shown_logprob(one) for token, one in entry.items()} or None
                for entry in entries
            ]
            for entries in in_blocks(logprobs)
        ),
        "text_offset": Blocks(
            [offsets.before(token) for token in block] for block in in_blocks(token_ids, _BLOCK)
        ),
    }


async def usage(
    outputs: Iterable[RequestOutput], turns: Turns, *, counts_drafts: bool = False
) -> dict[str, Any]:
    """Count tokens of all prompts and completions, and average layers and times over them.

    Times are those of the engine: ``time_to_first_token`` on average over the texts, and
    ``decode_seconds`` from each text's first token to its last, summed over the texts, so that
    tokens behind the first over ``decode_seconds`` is the speed of one text. With
    ``counts_drafts``, passes and drafted tokens of all texts are added.
    """
    prompt_tokens = completion_tokens = layers = 0
    drafts = Drafts()
    first_tokens, decode_seconds = [], 0.0
    for output in outputs:
        prompt_tokens += len(output.prompt_token_ids)
        for completion in output.outputs:
            completion_tokens += len(completion.token_ids)
            layers += sum(completion.layers_per_token)
            if completion.timings is not None and completion.token_ids:
                first_tokens.append(completion.timings.time_to_first_token)
                decode_seconds += completion.timings.decode_seconds
            drafts = drafts.plus(completion.drafts or Drafts())
            await turns.take()
    num_texts = len(first_tokens)
    counted = {
        "passes": drafts.passes,
        "draft_tokens": drafts.drafted,
        "accepted_draft_tokens": drafts.accepted,
    }
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "realised_depth": layers / completion_tokens if completion_tokens else None,
        "time_to_first_token": sum(first_tokens) / num_texts if num_texts else None,
        "decode_seconds": decode_seconds if num_texts else None,
    } | (counted if counts_drafts else {})


def in_blocks(values: Sequence[Item], size: int = _TOP_BLOCK) -> Iterator[Sequence[Item]]:
    """Return the values in short slices, for `Blocks`."""
    return (values[start : start + size] for start in range(0, len(values), size))


def _token_name(token_id: int, tokenizer: Tokenizer | None) -> str:
    """A token's text; where it is part of a character, its bytes; where it has none, its id."""
    if tokenizer is None or not tokenizer.is_token(token_id):
        return f"token_id:{token_id}"
    text = tokenizer.token_text(token_id)
    if "\ufffd" not in text:
        return text
    raw = tokenizer.token_bytes(token_id)
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def shown_logprob(entry: Logprob) -> float:
    """Return a finite number: JSON has no infinity; OpenAI's own servers stop at about this."""
    return entry.logprob if math.isfinite(entry.logprob) else -9999.0
