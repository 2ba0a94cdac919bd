"""Results in OpenAI's JSON form, and the answers and events that carry them."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response, StreamingResponse

from ...schedule import ExitSchedule
from ...schedule.plan import LayerRanges
from ...tokens.outputs import CompletionOutput, Drafts, Logprob, RequestOutput
from ...tokens.tokenizer import Tokenizer

_CHUNK_BYTES = 1 << 16  # of a long answer, which stays open until its client has received it


def event(document: object) -> bytes:
    """Return a document as a server-sent event.

    It is ASCII, because some clients treat other characters than line feeds as line ends.
    """
    return f"data: {json.dumps(document, allow_nan=False, separators=(',', ':'))}\n\n".encode()


async def json_answer(
    make: Callable[[], tuple[Mapping[str, object], Iterable[object], object]],
) -> Response:
    """Answer with the head, choices and usage that ``make`` returns; a thread calls it.

    Choices are serialised one at a time, because the serialiser holds the GIL.
    """
    body = await asyncio.to_thread(lambda: _encoded(*make()))
    if len(body) <= _CHUNK_BYTES:
        return Response(body, media_type="application/json")

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), _CHUNK_BYTES):
            yield body[start : start + _CHUNK_BYTES]

    length = {"content-length": str(len(body))}
    return StreamingResponse(chunks(), media_type="application/json", headers=length)


def _encoded(head: Mapping[str, object], choices: Iterable[object], used: object) -> bytes:
    encoded = b",".join(to_json(choice) for choice in choices)
    return b'%s,"choices":[%s],"usage":%s}' % (to_json(head)[:-1], encoded, to_json(used))


class TokenNames(dict[int, str]):
    """Texts of tokens by id, cached because log-probabilities name the same tokens many times."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        super().__init__()
        self.tokenizer = tokenizer

    def __missing__(self, token_id: int) -> str:
        name = self[token_id] = _token_name(token_id, self.tokenizer)
        return name

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes of a token's text, which may be part of a character."""
        name = self[token_id]
        if self.tokenizer is not None and name.startswith("bytes:"):
            return self.tokenizer.token_bytes(token_id)
        return name.encode()


class TextOffsets:
    """Counts the characters of a choice's text that precede each of its tokens.

    The tokens of one character have its offset. Text that a stop string cuts off is counted,
    because a stream sends offsets before it knows of the stop string.
    """

    def __init__(self, names: TokenNames, start: int, *, skip_special_tokens: bool = True) -> None:
        self._decoder = (
            None
            if names.tokenizer is None
            else names.tokenizer.incremental_decoder(skip_special_tokens)
        )
        self._length = start

    def before_all(self, token_ids: Sequence[int]) -> list[int]:
        """Take the next tokens and return their offsets."""
        return [self._before(token_id) for token_id in token_ids]

    def _before(self, token_id: int) -> int:
        if self._decoder is None:  # without a tokenizer there is no text
            return self._length
        offset = self._length + self._decoder.num_held
        self._length += len(self._decoder.push(token_id))
        return offset


class ShownSchedule:
    """The schedule of a request as its choices show it; caches the layers of each depth."""

    def __init__(self, schedule: ExitSchedule, text: str) -> None:
        self.text = text
        self._schedule = schedule
        self._ranges: dict[int, LayerRanges] = {}

    def ranges(self, count: int) -> LayerRanges:
        """Return the layers that a token with ``count`` layers ran."""
        if count not in self._ranges:
            self._ranges |= self._schedule.layer_ranges([count])
        return self._ranges[count]


def choice_document(
    output: CompletionOutput,
    index: int,
    echo: str,
    schedule: ShownSchedule,
    names: TokenNames,
    offsets: TextOffsets,
) -> dict[str, Any]:
    """Return a completion, or its new part, whose tokens ``offsets`` counts.

    ``echo``, the prompt or "", precedes its text.
    """
    return {
        "index": index,
        "text": echo + output.text,
        "logprobs": output.logprobs
        and logprobs_document(
            output.token_ids, output.logprobs, names, offsets.before_all(output.token_ids)
        ),
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
        "schedule": schedule.text,
        "layers_per_token": list(output.layers_per_token),
        "layer_ranges": {
            count: schedule.ranges(count) for count in sorted(set(output.layers_per_token))
        },
    }


def logprobs_document(
    token_ids: Sequence[int],
    logprobs: Sequence[dict[int, Logprob]],
    names: TokenNames,
    text_offset: Sequence[int],
) -> dict[str, Any]:
    """Return OpenAI's four lists, with one entry per token.

    The entry is null for a token without log-probability, which is the first one of a prompt.
    """
    return {
        "tokens": [names[token] for token in token_ids],
        "token_logprobs": [
            shown_logprob(entry[token]) if entry else None
            for token, entry in zip(token_ids, logprobs, strict=True)
        ],
        "top_logprobs": [
            {names[token]: shown_logprob(one) for token, one in entry.items()} or None
            for entry in logprobs
        ],
        "text_offset": text_offset,
    }


def usage(outputs: Iterable[RequestOutput], *, counts_drafts: bool = False) -> dict[str, Any]:
    """Count tokens of all prompts and completions, and average layers and times over them.

    ``realised_depth`` leaves out each text's first token, which belongs to its prompt. Times are
    those of the engine: ``time_to_first_token`` on average over the texts, and ``decode_seconds``
    from each text's first token to its last, summed over the texts, so that the number of later
    tokens ÷ ``decode_seconds`` is the speed of one text. With ``counts_drafts``, passes and drafted
    tokens of all texts are added.
    """
    prompt_tokens = completion_tokens = later_tokens = layers = 0
    drafts = Drafts()
    first_tokens, decode_seconds = [], 0.0
    for output in outputs:
        prompt_tokens += len(output.prompt_token_ids)
        for completion in output.outputs:
            completion_tokens += len(completion.token_ids)
            later = completion.layers_per_token[1:]
            later_tokens += len(later)
            layers += sum(later)
            if completion.timings is not None and completion.token_ids:
                first_tokens.append(completion.timings.time_to_first_token)
                decode_seconds += completion.timings.decode_seconds
            drafts = drafts.plus(completion.drafts or Drafts())
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
        "realised_depth": layers / later_tokens if later_tokens else None,
        "time_to_first_token": sum(first_tokens) / num_texts if num_texts else None,
        "decode_seconds": decode_seconds if num_texts else None,
    } | (counted if counts_drafts else {})


def _token_name(token_id: int, tokenizer: Tokenizer | None) -> str:
    """Return a token's text, its bytes if it is part of a character, or its id without either."""
    if tokenizer is None or not tokenizer.is_token(token_id):
        return f"token_id:{token_id}"
    text = tokenizer.token_text(token_id)
    if "\ufffd" not in text:
        return text
    raw = tokenizer.token_bytes(token_id)
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def shown_logprob(entry: Logprob) -> float:
    """Return a finite log-probability, because JSON has no infinity; OpenAI's limit is similar."""
    return entry.logprob if math.isfinite(entry.logprob) else -9999.0
