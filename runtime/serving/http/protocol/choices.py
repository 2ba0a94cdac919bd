"""Results as OpenAI's documents: choices, log-probabilities, usage."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeVar

from ....schedule import ExitSchedule
from ....schedule.plan import LayerRanges
from ....tokens.outputs import CompletionOutput, Logprob, RequestOutput, StreamDelta
from ....tokens.tokenizer import Tokenizer
from .pieces import Blocks, Turns

Item = TypeVar("Item")

# Tokens whose entries are made and encoded at once: less than a millisecond.
_BLOCK, _TOP_BLOCK = 16, 2


class TokenNames(dict[int, str]):
    """Texts of tokens by id, each made once: log-probabilities name the same ones many times."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        super().__init__()
        self.tokenizer = tokenizer

    def __missing__(self, token_id: int) -> str:
        name = self[token_id] = _token_name(token_id, self.tokenizer)
        return name


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
    request: RequestOutput, output: CompletionOutput, index: int, prompt: str, names: TokenNames
) -> dict[str, Any]:
    """Return a completion of ``request`` that has ended; ``prompt`` is echoed before its text."""
    return {
        "index": index,
        "text": prompt + output.text,
        "logprobs": output.logprobs
        and logprobs_document(output.token_ids, output.logprobs, names, len(prompt)),
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
    offset: int,
) -> dict[str, Any]:
    """Return a completion's news since the last chunk, ``offset`` characters into its text."""
    tokens = [token for delta in deltas for token in delta.token_ids]
    logprobs = [entry for delta in deltas for entry in delta.logprobs or ()]
    layers = [delta.layers for delta in deltas for _ in delta.token_ids]
    return {
        "index": index,
        "text": prompt + "".join(delta.text for delta in deltas),
        "logprobs": logprobs_document(tokens, logprobs, names, offset) if logprobs else None,
        "finish_reason": deltas[-1].finish_reason,
        "stop_reason": deltas[-1].stop_reason,
        "schedule": schedule.text,
        "layers_per_token": layers,
        "layer_ranges": {count: schedule.ranges(count) for count in sorted(set(layers))},
    }


def logprobs_document(
    token_ids: Sequence[int],
    logprobs: Sequence[dict[int, Logprob]],
    names: TokenNames,
    offset: int,
) -> dict[str, Any]:
    """OpenAI's four lists, one entry a token; ``offset``: characters before the first.

    A token without an entry, the first of a prompt, has null.
    """
    lengths = (len(names[token]) for token in token_ids)
    offsets = accumulate(lengths, initial=offset)
    return {
        "tokens": Blocks([names[token] for token in block] for block in _blocks(token_ids)),
        "token_logprobs": Blocks(
            [
                _number(entry[token]) if entry else None
                for token, entry in zip(tokens, entries, strict=True)
            ]
            for tokens, entries in zip(_blocks(token_ids), _blocks(logprobs), strict=True)
        ),
        "top_logprobs": Blocks(
            [
                {names[token]: _number(one) for token, one in entry.items()} or None
                for entry in entries
            ]
            for entries in _blocks(logprobs, _TOP_BLOCK)
        ),
        "text_offset": Blocks([next(offsets) for _ in block] for block in _blocks(token_ids)),
    }


async def usage(outputs: Iterable[RequestOutput], turns: Turns) -> dict[str, Any]:
    """Count tokens of all prompts and completions, and average layers and times over them.

    Times are those of the engine: ``time_to_first_token`` on average over the texts, and
    ``decode_seconds`` from each text's first token to its last, summed over the texts, so that
    tokens behind the first over ``decode_seconds`` is the speed of one text.
    """
    prompt_tokens = completion_tokens = layers = 0
    first_tokens, decode_seconds = [], 0.0
    for output in outputs:
        prompt_tokens += len(output.prompt_token_ids)
        for completion in output.outputs:
            completion_tokens += len(completion.token_ids)
            layers += sum(completion.layers_per_token)
            if completion.timings is not None and completion.token_ids:
                first_tokens.append(completion.timings.time_to_first_token)
                decode_seconds += completion.timings.decode_seconds
            await turns.take()
    num_texts = len(first_tokens)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "realised_depth": layers / completion_tokens if completion_tokens else None,
        "time_to_first_token": sum(first_tokens) / num_texts if num_texts else None,
        "decode_seconds": decode_seconds if num_texts else None,
    }


def _blocks(values: Sequence[Item], size: int = _BLOCK) -> Iterator[Sequence[Item]]:
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


def _number(entry: Logprob) -> float:
    """JSON has no infinity; OpenAI's own servers stop at about this."""
    return entry.logprob if math.isfinite(entry.logprob) else -9999.0
